"""`cpu-curve`: computation time against batch size on a CPU (Fig. 2), measured here."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from evenstep.core.arrays import Floats
from evenstep.reproduce.experiment import Experiment, Progress, Settings, steps
from evenstep.reproduce.fitting import Fit, fit_line
from evenstep.reproduce.result import Claim, Curve, Plot, Result, Row, Table, beside

if TYPE_CHECKING:
    from torch import nn

    from evenstep.workloads.workload import Workload

MODELS = {"resnet32": "ResNet-32", "cifarnet": "CifarNet"}
_LINEAR = 0.98
"""r2 from which on a line is taken to fit; a busy machine bends it a little."""
_PAPERS_SHARE = 0.99


def run(settings: Settings, progress: Progress) -> Result:
    """Time gradients of both nets at several batch sizes, and the exchange of parameters."""
    from evenstep.workloads.named import make_workload

    sizes = settings.choose((2, 8, 16, 24), (8, 16, 32, 64, 96, 128))
    repeat = settings.choose(3, 9)
    rows, curves, fits, shares = [], [], [], []
    with one_thread():
        for name in steps(list(MODELS), progress):
            workload = make_workload(name)
            model = workload.make_model(seed=0)
            seconds, cpu_seconds = time_sizes(workload, model, sizes, repeat)
            along = np.array(sizes, dtype=float)
            fit, cpu_fit = fit_line(along, seconds), fit_line(along, cpu_seconds)
            num_bytes = 4 * sum(p.numel() for p in model.parameters())
            exchange = time_exchange(num_bytes, repeat)
            share = float(seconds[-1] / (seconds[-1] + exchange))
            rows.append(_row(name, cpu_fit, fit.r2, sizes[-1], float(seconds[-1]), exchange, share))
            fits.append(cpu_fit)
            shares.append(share)
            curves += [
                Curve(f"{MODELS[name]}, CPU time", list(sizes), cpu_seconds.tolist()),
                Curve(f"{MODELS[name]}, wall clock", list(sizes), seconds.tolist(), dashed=True),
            ]
    return Result(
        [
            Table(
                "Gradients on one core, and an exchange of all parameters",
                "measured",
                rows,
                f"Medians of {repeat} gradients per batch size, sizes in turn. CPU time is this "
                "process's own; on the wall clock, whatever else runs on this machine is in it. "
                "The exchange is a pull and a push over a local socket, not a network.",
            )
        ],
        [
            Plot(
                "Computation time against batch size",
                "measured",
                "batch size",
                "seconds",
                curves,
            )
        ],
        [
            Claim(
                "linear",
                "On CPUs computation time is linear in the batch size (r2 of CPU time: "
                f"{', '.join(f'{fit.r2:.4f}' for fit in fits)}).",
                all(fit.r2 >= _LINEAR for fit in fits),
                why="this machine was busy with other things",
            ),
            Claim(
                "mostly_computation",
                "Computation is more than 99 % of the batch processing time (here "
                f"{', '.join(f'{share:.1%}' for share in shares)}, with the largest batch size).",
                all(share > _PAPERS_SHARE for share in shares),
                why="the smaller the net's work per parameter and the batch, the less it is; "
                "CifarNet has a million parameters and little to compute",
            ),
        ],
        [
            "The paper measured ResNet-32 and Inception-V3 on EC2 instances with TensorFlow, as "
            "pictures only; an Inception-V3 would take minutes here, CifarNet stands beside "
            "ResNet-32 instead. Pictures are digits in CIFAR-10's shape: times do not depend on "
            "what they show.",
        ],
    )


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch compute on one core."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def time_sizes(
    workload: Workload, model: nn.Module, sizes: Sequence[int], repeat: int
) -> tuple[Floats, Floats]:
    """Return the median seconds of a gradient at each batch size: on the wall clock, and of CPU."""
    from evenstep.workloads.workload import gradients

    rng = np.random.default_rng(0)
    spent = np.empty((repeat + 1, len(sizes), 2))
    # The first round is warm-up; sizes come in turn, so that a slow moment hits all alike.
    for k in range(repeat + 1):
        for i, size in enumerate(sizes):
            samples = rng.choice(workload.num_samples, size, replace=False)
            wall, cpu = time.perf_counter(), time.process_time()
            gradients(workload, model, samples)
            spent[k, i] = time.perf_counter() - wall, time.process_time() - cpu
    seconds, cpu_seconds = np.median(spent[1:], axis=0).T
    return seconds, cpu_seconds


def time_exchange(num_bytes: int, repeat: int) -> float:
    """Return the median seconds to pull and push so many bytes over a local socket."""
    ours, theirs = socket.socketpair()
    content = bytes(num_bytes)
    with ours, theirs:
        server = threading.Thread(target=_serve, args=(theirs, content, repeat), daemon=True)
        server.start()
        spent = []
        for _ in range(repeat):
            start = time.perf_counter()
            _receive(ours, num_bytes)
            ours.sendall(content)
            spent.append(time.perf_counter() - start)
        server.join()
    return float(np.median(spent))


def _serve(connection: socket.socket, content: bytes, repeat: int) -> None:
    for _ in range(repeat):
        connection.sendall(content)
        _receive(connection, len(content))


def _receive(connection: socket.socket, num_bytes: int) -> None:
    missing = num_bytes
    while missing:
        missing -= len(connection.recv(min(missing, 2**20)))


def _row(
    name: str,
    fit: Fit,
    wall_r2: float,
    size: int,
    seconds: float,
    exchange: float,
    share: float,
) -> Row:
    return {
        "model": MODELS[name],
        "ms of CPU at 0 (fit)": 1e3 * fit.overhead,
        "ms of CPU per sample": 1e3 * fit.per_sample,
        **beside("r2", fit.r2, "strong linearity"),
        "r2, wall clock": wall_r2,
        "largest batch size": size,
        "its gradient, ms": 1e3 * seconds,
        "exchange, ms": 1e3 * exchange,
        **beside("part that is computation", share, "more than 0.99"),
    }


EXPERIMENT = Experiment(
    "cpu-curve",
    "computation time against batch size on this machine's CPU",
    "Fig. 2, section 3.2.1",
    "measured",
    run,
)
