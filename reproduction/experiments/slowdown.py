"""`slowdown`: speed under restricted CPU and memory (Fig. 2), really restricted, measured here."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from evenstep.errors import EvenstepError
from evenstep.simulator.load.throttle import Throttles
from reproduction.checkout import environment
from reproduction.experiment import Experiment, Progress, Settings, Skipped
from reproduction.memory_group import memory_group
from reproduction.result import Claim, Curve, Plot, Result, Table

FEATURES = 512
_INTERPRETER = 24 * 2**20
"""Bytes that a worker takes in addition to the file, generously."""
_CPU_PASSES, _MEMORY_PASSES = 8, 1
"""Passes over a batch: with one, what counts is how quickly the rows come."""

_SLOWER = 0.8
"""Part of the unrestricted speed below which a worker is slower."""

Speeds = dict[float, float]
"""Part of the resource: speed in samples per second."""


def run(settings: Settings, progress: Progress) -> Result:
    """Restrict a worker's CPU, then its memory, more and more; say what is not permitted."""
    seconds = settings.choose(1.0, 8.0)
    megabytes = settings.choose(64, 512)
    cpu_shares = settings.choose((1.0, 0.5, 0.25), (1.0, 0.9, 0.75, 0.5, 0.33, 0.25, 0.1))
    memory_shares = settings.choose((1.2, 0.25), (1.2, 1.0, 0.9, 0.75, 0.5, 0.25))
    try:
        with _rows(megabytes) as path:
            progress(0.0, "CPU")
            cpu = _tried(lambda: under_quotas(path, cpu_shares, seconds))
            progress(0.5, "memory")
            memory = _tried(lambda: under_limits(path, memory_shares, megabytes, seconds))
    except OSError as problem:
        raise Skipped(f"a file of {megabytes} MiB cannot be written here: {problem}") from problem
    if isinstance(cpu, str) and isinstance(memory, str):
        raise Skipped(f"{cpu}; {memory}")
    done = [
        (what, part, speeds)
        for what, part, speeds in (
            ("CPU", "share of a CPU (quota)", cpu),
            ("memory", "memory for the file / its size", memory),
        )
        if not isinstance(speeds, str)
    ]
    return Result(
        [_table(what, part, speeds) for what, part, speeds in done],
        [_plot(what, part, speeds) for what, part, speeds in done],
        [_claim(what, speeds) for what, _, speeds in done],
        [
            "The paper restricts a TensorFlow training with stress-ng, with swap space, and shows "
            "the result as a picture. There may be no swap here: memory is short for a file that "
            "is mapped into memory, whose pages have to be read again.",
            *(f"Skipped: {problem}." for problem in (cpu, memory) if isinstance(problem, str)),
        ],
    )


def _tried(measure: Callable[[], Speeds]) -> Speeds | str:
    try:
        return measure()
    except EvenstepError as problem:
        return str(problem)


@contextmanager
def _rows(megabytes: int) -> Iterator[Path]:
    """Write a file of random rows, and remove it in the end."""
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory(prefix="evenstep-") as folder:
        path = Path(folder, "rows.f32")
        with path.open("wb") as file:
            for _ in range(megabytes):
                file.write(rng.random(2**18, dtype=np.float32).tobytes())
            file.flush()
            os.fsync(file.fileno())
        yield path


def under_quotas(path: Path, shares: tuple[float, ...], seconds: float) -> Speeds:
    """Return the speed with each share of a CPU."""
    with Throttles(shares) as throttles:
        return {
            share: _speed(group, path, _CPU_PASSES, seconds)
            for share, group in zip(shares, throttles.groups, strict=True)
        }


def under_limits(path: Path, shares: tuple[float, ...], megabytes: int, seconds: float) -> Speeds:
    """Return the speed with memory for each share of the file."""
    speeds = {}
    for share in shares:
        _forget_pages(path)
        with memory_group(_INTERPRETER + round(share * megabytes * 2**20)) as group:
            speeds[share] = _speed(group, path, _MEMORY_PASSES, seconds)
    return speeds


def _forget_pages(path: Path) -> None:
    """Let the system forget a file's pages.

    A limit touches only those that its group brought in.
    """
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _speed(group: str, path: Path, passes: int, seconds: float) -> float:
    arguments = [group, str(path), str(FEATURES), str(passes), str(seconds)]
    longest = 60 + 20 * seconds
    try:
        worker = subprocess.run(
            [sys.executable, "-m", "reproduction.slowed_worker", *arguments],
            env=environment(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1"),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=longest,
        )
    except subprocess.TimeoutExpired:
        raise EvenstepError(f"a worker in {group} was not done after {longest:g} s") from None
    if worker.returncode:
        last = (worker.stderr.splitlines() or ["killed"])[-1]
        raise EvenstepError(f"a worker in {group} ended with {worker.returncode}: {last}")
    return float(worker.stdout)


def _table(what: str, part: str, speeds: Speeds) -> Table:
    first = next(iter(speeds.values()))
    return Table(
        f"Speed with less {what}",
        "measured",
        [
            {part: share, "samples per second": value, "speed / unrestricted": value / first}
            for share, value in speeds.items()
        ],
        "A linear model on rows of a file that is mapped into memory, one process, one thread, "
        f"with {_CPU_PASSES} passes over each batch for the CPU and {_MEMORY_PASSES} for memory; "
        "whatever else runs on this machine is in it.",
    )


def _plot(what: str, part: str, speeds: Speeds) -> Plot:
    first = next(iter(speeds.values()))
    values = [value / first for value in speeds.values()]
    return Plot(
        f"Speed with less {what}",
        "measured",
        part,
        "speed / unrestricted",
        [Curve("speed", list(speeds), values)],
    )


def _claim(what: str, speeds: Speeds) -> Claim:
    first, *_, last = speeds.values()
    return Claim(
        f"less_{what}".lower(),
        f"With less {what} a worker is slower: {last / first:.2f} of the unrestricted "
        f"speed with {list(speeds)[-1]:g}.",
        last < _SLOWER * first,
        why=f"less than {_SLOWER:g} is asked; what kept the limit from showing is not known",
    )


EXPERIMENT = Experiment(
    "slowdown",
    "speed under restricted CPU and memory",
    "Fig. 2, section 3.2.2",
    "measured",
    run,
)
