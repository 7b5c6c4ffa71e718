"""Build the tables of Cluster-A and Cluster-B from the full data.

    python scripts/build_clusters.py DATA [--out FOLDER]

DATA is a folder with `gpu_profet/profet_batch_latency.csv` and, in `google2011_hour/`, the files
`cluster_b_32_workers.csv`, `machine_usage_hour.csv.gz` and `task_placements_first_5611s.csv.gz`;
evenstep/simulator/clusters/data/SOURCE.md says where they come from. The tables go to that
folder, unless --out names another one, and are the same to the byte whenever the data are.
"""

import argparse
import csv
import gzip
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

TABLES = Path(__file__).parent.parent / "evenstep" / "simulator" / "clusters" / "data"

MODELS = {
    "inception_v3": ("InceptionV3", 256),
    "resnet32": ("ResNet18", 32),
    "cifarnet": ("CIFAR10_CNN", 32),
}
"""Model of the paper: the model and picture size that were measured, the nearest there are."""
GPUS = ("V100", "M60", "K80")
LARGEST = 256
"""The largest batch size that was tried at all."""
K520_OVER_K80 = 2.0
"""K520 was not measured: 1.8 to 2.2 times K80's time in cnn-benchmarks, at batch size 16."""
K520_MEMORY_OVER_M60 = 0.5
"""4 GiB of 8 GiB."""

BACKUP, NUM_BACKUPS = "c5.2xlarge", 2
SLOT = 300
"""Seconds of one level of the usage hour."""
TASKS_FROM, TASKS_UNTIL = 600.0, 5611.0
"""Between these seconds the task events are complete."""
CPU_USED, MEMORY_USED = 0.3, 0.45
"""What tasks use of what they request, on average, in this trace."""


def main() -> None:
    parser = argparse.ArgumentParser(description="Build the tables of Cluster-A and Cluster-B.")
    parser.add_argument("data", type=Path, help="the folder of the full data")
    parser.add_argument("--out", type=Path, default=TABLES, help="where to write the tables")
    args = parser.parse_args()
    google = args.data / "google2011_hour"
    write(
        args.out / "cluster_a.csv",
        ("model", "measured_model", "image_size", "gpu", "kind", "batch_size", "seconds"),
        cluster_a(read(args.data / "gpu_profet" / "profet_batch_latency.csv")),
    )
    usage = {row["machine_id"]: row for row in read(google / "machine_usage_hour.csv.gz")}
    tasks = by_machine(read(google / "task_placements_first_5611s.csv.gz"))
    workers = cluster_b(read(google / "cluster_b_32_workers.csv"), usage, tasks)
    write(args.out / "cluster_b_workers.csv", ("worker", "instance", "machine_id"), workers)
    machines = [(worker, usage[machine]) for worker, _, machine in workers]
    write(
        args.out / "cluster_b_usage.csv",
        ("worker", "second", "cpu", "memory"),
        (level for worker, machine in machines for level in usage_levels(worker, machine)),
    )
    write(
        args.out / "cluster_b_tasks.csv",
        ("worker", "start", "end", "cpu", "memory"),
        (
            task
            for worker, machine in machines
            for task in machine_tasks(worker, machine, tasks[machine["machine_id"]])
        ),
    )


def cluster_a(latencies: Iterable[dict[str, str]]) -> Iterator[tuple[object, ...]]:
    """Yield the curves: medians of the repeats, K520's from K80's, each with its start."""
    repeats = defaultdict(list)
    for row in latencies:
        key = (row["model"], int(row["image_size"]), row["gpu"], int(row["batchsize"]))
        repeats[key].append(float(row["batch_ms"]) / 1000)
    for name, (model, image_size) in MODELS.items():
        curves = {
            gpu: {
                size: statistics.median(times)
                for (m, i, g, size), times in sorted(repeats.items())
                if (m, i, g) == (model, image_size, gpu)
            }
            for gpu in GPUS
        }
        largest = max(curves["M60"])
        # Where even the M60 had enough memory, no GPU is known to lack it.
        cap = largest if largest == LARGEST else largest * K520_MEMORY_OVER_M60
        curves["K520"] = {
            size: K520_OVER_K80 * time for size, time in curves["K80"].items() if size <= cap
        }
        for gpu, curve in curves.items():
            kind = "measured" if gpu in GPUS else "derived"
            head = (name, model, image_size, gpu)
            yield (*head, "extrapolated", 0, f"{start(curve):.6f}")
            for size, time in curve.items():
                yield (*head, kind, size, f"{time:.6f}")


def start(curve: dict[int, float]) -> float:
    """Return where the line through the two smallest sizes meets batch size 0."""
    (x, t), (later_x, later_t), *_ = sorted(curve.items())
    return t - (later_t - t) / (later_x - x) * x


def cluster_b(
    given: Iterable[dict[str, str]],
    usage: dict[str, dict[str, str]],
    tasks: dict[str, list[dict[str, str]]],
) -> list[tuple[str, str, str]]:
    """Return worker, instance type and machine: those that are given, then the backups."""
    given = list(given)
    instances = [row["instance_type"] for row in given]
    seen: dict[str, int] = defaultdict(int)
    workers = []
    for row in given:
        kind = row["instance_type"]
        name = kind if instances.count(kind) == 1 else f"{kind}-{seen[kind]}"
        seen[kind] += 1
        workers.append((name, kind, row["google_machine_id"]))
    like = next(row for row in given if row["instance_type"] == BACKUP)
    taken = {machine for _, _, machine in workers}
    alike = [
        machine
        for machine, row in usage.items()
        if all(float(row[key]) == float(like[key]) for key in ("cpu_capacity", "mem_capacity"))
        and machine in tasks
        and machine not in taken
    ]
    chosen = np.random.default_rng(2020).choice(sorted(alike, key=int), NUM_BACKUPS, replace=False)
    return [*workers, *((f"backup-{i}", BACKUP, str(m)) for i, m in enumerate(chosen))]


def usage_levels(worker: str, machine: dict[str, str]) -> Iterator[tuple[object, ...]]:
    """Yield what the usage hour left of a machine: shares of its CPU and memory."""
    for slot in range(3600 // SLOT):
        cpu, memory = (
            1 - float(machine[f"{what}_{slot:02}"]) / float(machine[f"{what}_capacity"])
            for what in ("cpu", "mem")
        )
        yield worker, slot * SLOT, f"{cpu:.4f}", f"{memory:.4f}"


def machine_tasks(
    worker: str, machine: dict[str, str], tasks: Sequence[dict[str, str]]
) -> Iterator[tuple[object, ...]]:
    """Yield the tasks on a machine: when they ran, and the shares of it that they took."""
    for task in sorted(tasks, key=lambda task: float(task["start_s"])):
        start = max(0.0, float(task["start_s"]) - TASKS_FROM)
        end = float(task["end_s"])
        end = (TASKS_UNTIL if end < 0 else end) - TASKS_FROM
        cpu = CPU_USED * float(task["cpu_request"]) / float(machine["cpu_capacity"])
        memory = MEMORY_USED * float(task["mem_request"]) / float(machine["mem_capacity"])
        if end > start:
            yield worker, f"{start:.1f}", f"{end:.1f}", f"{cpu:.4f}", f"{memory:.4f}"


def by_machine(tasks: Iterable[dict[str, str]]) -> dict[str, list[dict[str, str]]]:
    machines = defaultdict(list)
    for task in tasks:
        machines[task["machine_id"]].append(task)
    return machines


def read(path: Path) -> Iterator[dict[str, str]]:
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
        yield from csv.DictReader(file)


def write(path: Path, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)


if __name__ == "__main__":
    main()
