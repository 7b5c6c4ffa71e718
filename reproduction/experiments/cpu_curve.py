"""`cpu-curve`: computation time against batch size on a CPU (Fig. 1), measured here."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from evenstep.core import Floats
from reproduction.experiment import Experiment, Progress, Settings, steps
from reproduction.fitting import Fit, fit_line
from reproduction.result import Claim, Curve, Plot, Result, Row, Table, beside

if TYPE_CHECKING:
    from torch import nn

    from evenstep.simulator.workloads.workload import Workload

MODELS = {"resnet32": "ResNet-32", "cifarnet": "CifarNet"}
_LINEAR = 0.98
"""r2 from which on a line is taken to fit."""
_PAPERS_SHARE = 0.99
PAPERS_WORKERS, PAPERS_LINE = 32, 10e9
"""Of its cluster: workers, and bit/s of the one parameter server."""
_SOCKET = "one worker, local socket"
_PAPERS_SETTING = f"{PAPERS_WORKERS} workers, {PAPERS_LINE / 1e9:g} Gbit/s"


@dataclass(frozen=True, eq=False)
class Timed:
    """The times of a model's gradients."""

    model: str
    sizes: Floats
    seconds: Floats
    """Of a gradient at each batch size, on the wall clock."""
    cpu_seconds: Floats
    """The same, of this process's CPU time."""
    exchange: float
    """Seconds of a pull and a push of all parameters, over a local socket."""
    num_bytes: int
    """Of all parameters."""

    @property
    def fit(self) -> Fit:
        return fit_line(self.sizes, self.cpu_seconds)

    @property
    def computation(self) -> float:
        """The part of t that is computation, with the largest batch."""
        return self._part(self.exchange)

    @property
    def papers_exchange(self) -> float:
        """Seconds in which the server's line carries a pull and a push of all the paper's workers.

        Computed: all of them at once, and nothing of it while they compute.
        """
        return 2 * 8 * self.num_bytes * PAPERS_WORKERS / PAPERS_LINE

    @property
    def papers_computation(self) -> float:
        """The same part of t with that exchange."""
        return self._part(self.papers_exchange)

    def _part(self, exchange: float) -> float:
        return float(self.seconds[-1] / (self.seconds[-1] + exchange))


def run(settings: Settings, progress: Progress) -> Result:
    """Time gradients of both nets at several batch sizes, and the exchange of parameters."""
    sizes = settings.choose((2, 8, 16, 24), (8, 16, 32, 64, 96, 128))
    repeat = settings.choose(3, 9)
    with one_thread():
        timed = [time_model(model, sizes, repeat) for model in steps(list(MODELS), progress)]
    gradients = Table(
        "Gradients on one core",
        "measured",
        [_row_of_fit(each) for each in timed],
        f"Medians of {repeat} gradients per batch size, sizes in turn. CPU time is this process's "
        "own; on the wall clock, whatever else runs on this machine is in it.",
    )
    parts = Table(
        f"The part of t that is computation, {sizes[-1]} samples",
        "measured",
        [row for each in timed for row in _rows_of_parts(each)],
        f"Gradients are those of one core here. '{_SOCKET}' is a pull and a push over a local "
        f"socket, not a network. '{_PAPERS_SETTING}' is computed, not measured: what as many pulls "
        "and pushes take on a server's line, as in the paper's cluster, where no exchange overlaps "
        "with computing.",
    )
    return Result([gradients, parts], [_plot(timed)], _claims(timed), _DIFFERENCES)


@contextmanager
def one_thread() -> Iterator[None]:
    """Limit torch to one core."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def time_model(name: str, sizes: Sequence[int], repeat: int) -> Timed:
    """Time the gradients of a model, and the exchange of its parameters."""
    from evenstep.simulator.workloads.registry import make_workload

    workload = make_workload(name)
    model = workload.make_model(seed=0)
    num_bytes = 4 * sum(parameter.numel() for parameter in model.parameters())
    seconds, cpu_seconds = time_sizes(workload, model, sizes, repeat)
    exchange = time_exchange(num_bytes, repeat)
    return Timed(name, np.array(sizes, dtype=float), seconds, cpu_seconds, exchange, num_bytes)


def time_sizes(
    workload: Workload, model: nn.Module, sizes: Sequence[int], repeat: int
) -> tuple[Floats, Floats]:
    """Return the median seconds of a gradient at each batch size: on the wall clock, and of CPU."""
    from evenstep.simulator.workloads.workload import gradients

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
    """Return the median seconds to pull and push some bytes over a local socket."""
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


def _row_of_fit(timed: Timed) -> Row:
    fit = timed.fit
    return {
        "model": MODELS[timed.model],
        "ms of CPU at 0 (fit)": 1e3 * fit.overhead,
        "ms of CPU per sample": 1e3 * fit.per_sample,
        **beside("r2", fit.r2, "strong linearity"),
        "r2, wall clock": fit_line(timed.sizes, timed.seconds).r2,
    }


def _rows_of_parts(timed: Timed) -> list[Row]:
    exchanges = {
        f"{_SOCKET} (measured)": (timed.exchange, timed.computation),
        f"{_PAPERS_SETTING} (computed)": (timed.papers_exchange, timed.papers_computation),
    }
    return [
        {
            "model": MODELS[timed.model],
            "exchange": how,
            "gradient, ms": 1e3 * float(timed.seconds[-1]),
            "exchange, ms": 1e3 * exchange,
            **beside("part that is computation", part, "more than 0.99"),
        }
        for how, (exchange, part) in exchanges.items()
    ]


def _plot(timed: Sequence[Timed]) -> Plot:
    curves = [
        Curve(f"{MODELS[each.model]}, {what}", each.sizes.tolist(), values.tolist(), dashed)
        for each in timed
        for what, values, dashed in (
            ("CPU time", each.cpu_seconds, False),
            ("wall clock", each.seconds, True),
        )
    ]
    title = "Computation time against batch size"
    return Plot(title, "measured", "batch size", "seconds", curves)


def _claims(timed: Sequence[Timed]) -> list[Claim]:
    return [
        _linear(timed),
        _mostly_computation(
            "mostly_computation",
            _SOCKET,
            {each.model: (each.computation, each.exchange) for each in timed},
        ),
        _mostly_computation(
            "mostly_computation_of_32",
            f"computed for {_PAPERS_SETTING}, without overlap",
            {each.model: (each.papers_computation, each.papers_exchange) for each in timed},
        ),
    ]


def _linear(timed: Sequence[Timed]) -> Claim:
    bent = [each for each in timed if each.fit.r2 < _LINEAR]
    return Claim(
        "linear",
        "On CPUs computation time is linear in the batch size (r2 of CPU time: "
        f"{', '.join(f'{each.fit.r2:.4f}' for each in timed)}).",
        not bent,
        why=", ".join(
            f"a line leaves {1 - each.fit.r2:.1%} of the variance with {MODELS[each.model]}"
            for each in bent
        )
        + f", more than {1 - _LINEAR:.0%}; the reason is not known",
    )


def _mostly_computation(name: str, how: str, found: Mapping[str, tuple[float, float]]) -> Claim:
    """Ask the paper's 99 % of parts and the seconds of an exchange, by model."""
    parts = ", ".join(f"{MODELS[model]} {part:.1%}" for model, (part, _) in found.items())
    return Claim(
        name,
        f"Computation is more than 99 % of the batch processing time (largest batch, {how}: "
        f"{parts}).",
        all(part > _PAPERS_SHARE for part, _ in found.values()),
        why=", ".join(
            f"the exchange takes {1e3 * exchange:.1f} ms with {MODELS[model]}, {1 - part:.1%} of t"
            for model, (part, exchange) in found.items()
            if part <= _PAPERS_SHARE
        ),
    )


_DIFFERENCES = [
    "The paper measured ResNet-32 and Inception-V3 on EC2 instances with TensorFlow, as pictures "
    "only; an Inception-V3 would take minutes here, CifarNet stands beside ResNet-32 instead. "
    "Pictures are digits in CIFAR-10's shape: times do not depend on what they show.",
    "Its 99 % is of Inception-V3, which computes far more per parameter, with 32 workers and a "
    "parameter server on a network of up to 10 Gbit/s.",
]

EXPERIMENT = Experiment(
    "cpu-curve",
    "computation time against batch size on this machine's CPU",
    "Fig. 1, section 3.2.1",
    "measured",
    run,
)
