"""`overhead`: the cost of measuring and batch size updating through a real manager (Fig. 11)."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from evenstep.core import Floats
from reproduction.experiment import Experiment, Progress, Settings, steps
from reproduction.real_load import LEARNS_FROM
from reproduction.result import Claim, Curve, Plot, Result, Row, Table, beside
from reproduction.synthetic_workers import ITERATION, SAMPLES, SPEED

if TYPE_CHECKING:
    from psutil import Process

WORKERS = (32, 64, 96)
PAPERS, OURS = "narx", "best_of"
"""Predictors."""
MESSAGES, CLIENTS = "messages", "evenstep.connect"
"""How workers are simulated."""
_MOST = 0.011
"""The paper: less than 1.1 % with 96 workers, both together."""
_GROWTH = 2 * WORKERS[-1] / WORKERS[0]


@dataclass(frozen=True)
class Case:
    """The clients of the manager."""

    workers: int
    predictor: str
    clients: str = MESSAGES

    def __str__(self) -> str:
        return f"{self.workers} workers, {self.predictor}, {self.clients}"


@dataclass(frozen=True, eq=False)
class Spent:
    """The times of rounds."""

    seconds: Floats
    """Of each, on the wall clock."""
    manager: float
    """CPU seconds of the manager in a round, on average, NARX's training included."""
    workers: float
    """The same of this process, which simulates the workers."""


@dataclass(frozen=True)
class Scale:
    """How much is timed."""

    learns_from: int
    """Iterations that NARX learns from, EMA until then: their rounds are not counted."""
    counted: int
    """Rounds that are."""

    @property
    def narx(self) -> str:
        """The paper's predictor, or one that learns from less."""
        return PAPERS if self.learns_from == LEARNS_FROM else f"{PAPERS}:start={self.learns_from}"

    @property
    def cases(self) -> list[Case]:
        return [
            *(Case(n, predictor) for predictor in (self.narx, OURS) for n in WORKERS),
            Case(WORKERS[0], self.narx, CLIENTS),
        ]


FULL = Scale(LEARNS_FROM, 1000)
QUICK = Scale(30, 20)


def run(settings: Settings, progress: Progress) -> Result:
    """Let a manager plan for simulated workers, and time each round and each reading of usage."""
    scale = settings.choose(QUICK, FULL)
    measuring = usage_readings(settings.choose(200, 2000))
    rounds = {case: time_rounds(case, scale) for case in steps(scale.cases, progress)}
    return Result(
        [_times(rounds, measuring, scale), _shares(rounds, measuring)],
        [_plot(rounds, measuring)],
        _claims(rounds, measuring),
        _DIFFERENCES,
    )


def _times(rounds: Mapping[Case, Spent], measuring: Floats, scale: Scale) -> Table:
    return Table(
        f"Blocking rounds through the manager, {scale.counted} iterations",
        "measured",
        [_row_of_times(case, each, measuring) for case, each in rounds.items()],
        "Updating is a round, from the first report until the last worker has read its plan. "
        f"Workers are played: '{MESSAGES}' is one thread that writes and reads the messages of all "
        f"of them without their clients, '{CLIENTS}' has the public client in a thread for each; "
        "their own work is in the round, and they share this machine's cores with the manager. CPU "
        "time, per round, is what manager and workers had of the cores, without waiting for them. "
        "Measuring is a reading of CPU and memory usage, the same in every row. The policy is "
        f"proportional; X is {SAMPLES} for each worker, and speeds are spread around {SPEED:g}. "
        f"The first {scale.learns_from} iterations of each row are not counted: NARX predicts as "
        "EMA does before it has learned from them, and until its first training, which runs "
        "next to the rounds that are counted, is done.",
    )


def _shares(rounds: Mapping[Case, Spent], measuring: Floats) -> Table:
    return Table(
        f"The same as shares of an assumed iteration of {ITERATION:.2f} s",
        "measured",
        [_row_of_shares(case, each.seconds, measuring) for case, each in rounds.items()],
        f"What is divided by is assumed: {SAMPLES} samples of ResNet-32 at the {SPEED:g} samples "
        "per second of a c5.2xlarge; times are measured. 5th and 95th are percentiles.",
    )


def usage_readings(count: int) -> Floats:
    """Return the seconds of a number of readings of CPU and memory usage."""
    from evenstep.measure.usage import UsageProbe

    probe = UsageProbe()
    try:
        spent = []
        for _ in range(count):
            start = time.perf_counter()
            probe.read()
            spent.append(time.perf_counter() - start)
    finally:
        probe.close()
    # The first reading starts a thread.
    return np.array(spent[1:])


def time_rounds(case: Case, scale: Scale) -> Spent:
    """Return what the rounds that count through a manager took, one of its own.

    Another's would still be training the networks of the case before.
    """
    from reproduction.client_workers import client_rounds
    from reproduction.manager_workers import manager, playing

    job = ("overhead", case.workers, case.predictor)
    with manager() as (process, address):
        read = partial(_cpu_seconds, process)
        if case.clients == CLIENTS:
            seconds, spent = client_rounds(address, *job, scale.learns_from, scale.counted, read)
        else:
            with playing(address, *job, scale.learns_from) as played:
                before = read()
                seconds = np.array(played.rounds(scale.counted))
                spent = read() - before
    return Spent(seconds, *(spent / scale.counted).tolist())


def _cpu_seconds(process: Process) -> Floats:
    """Return the CPU time of the manager, and of this process."""
    times = process.cpu_times()
    return np.array([times.user + times.system, time.process_time()])


def _row_of_times(case: Case, rounds: Spent, measuring: Floats) -> Row:
    return {
        **_who(case),
        "measuring, ms": 1e3 * float(measuring.mean()),
        "updating, ms": 1e3 * float(rounds.seconds.mean()),
        "manager's CPU, ms": 1e3 * rounds.manager,
        "workers' CPU, ms": 1e3 * rounds.workers,
    }


def _row_of_shares(case: Case, updating: Floats, measuring: Floats) -> Row:
    is_papers = case == Case(WORKERS[-1], PAPERS)
    return {
        **_who(case),
        **{f"measuring: {name}": share for name, share in _statistics(measuring).items()},
        **{f"updating: {name}": share for name, share in _statistics(updating).items()},
        **beside("both: mean", _both(updating, measuring), "< 0.011" if is_papers else None),
    }


def _who(case: Case) -> Row:
    return {"workers": case.workers, "predictor": case.predictor, "played by": case.clients}


def _statistics(spent: Floats) -> dict[str, float]:
    """Return mean and percentiles as shares of the iteration."""
    return {
        "mean": float(spent.mean()) / ITERATION,
        "5th": float(np.percentile(spent, 5)) / ITERATION,
        "95th": float(np.percentile(spent, 95)) / ITERATION,
    }


def _both(updating: Floats, measuring: Floats) -> float:
    return float(updating.mean() + measuring.mean()) / ITERATION


def _plot(rounds: Mapping[Case, Spent], measuring: Floats) -> Plot:
    def curves(label: str, spent: list[Floats], names: tuple[str, ...]) -> list[Curve]:
        shares = list(map(_statistics, spent))
        return [
            Curve(
                f"{label}: {name}", list(WORKERS), [share[name] for share in shares], name != "mean"
            )
            for name in names
        ]

    every = ("mean", "5th", "95th")
    updating = [
        curve
        for predictor in _predictors(rounds)
        for curve in curves(
            f"updating, {predictor}", [rounds[Case(n, predictor)].seconds for n in WORKERS], every
        )
    ]
    both = [*updating, *curves("measuring", [measuring] * len(WORKERS), every)]
    title = f"Overheads as a share of an assumed iteration of {ITERATION:.2f} s"
    return Plot(title, "measured", "workers", "share of it: mean, percentiles", both)


def _claims(rounds: Mapping[Case, Spent], measuring: Floats) -> list[Claim]:
    papers, ours = Case(WORKERS[-1], PAPERS), Case(WORKERS[-1], OURS)
    return [
        # A quick run has too few rounds for NARX to be trained in, whatever it learns from.
        *([_small("small", "paper", papers, rounds, measuring)] if papers in rounds else []),
        _small("our_small", "evenstep", ours, rounds, measuring),
        _grows_slowly(rounds),
    ]


def _predictors(rounds: Mapping[Case, Spent]) -> list[str]:
    return list(dict.fromkeys(case.predictor for case in rounds))


def _small(
    name: str, of: str, case: Case, rounds: Mapping[Case, Spent], measuring: Floats
) -> Claim:
    updating = rounds[case].seconds
    share = _both(updating, measuring)
    return Claim(
        name,
        f"With {case.workers} workers and {case.predictor}, both overheads together are less than "
        f"1.1 % of the iteration (here {share:.2%} of the assumed one).",
        share < _MOST,
        of=of,
        why=f"1.1 % are {1e3 * _MOST * ITERATION:.1f} ms, a round takes "
        f"{1e3 * updating.mean():.1f} ms and measuring {1e3 * measuring.mean():.2f} ms; of CPU "
        f"time a round takes the manager {1e3 * rounds[case].manager:.1f} ms and the played "
        f"workers {1e3 * rounds[case].workers:.1f} ms",
    )


def _grows_slowly(rounds: Mapping[Case, Spent]) -> Claim:
    def median(num_workers: int, predictor: str) -> float:
        return float(np.median(rounds[Case(num_workers, predictor)].seconds))

    fewest, most = WORKERS[0], WORKERS[-1]
    growth = {
        predictor: median(most, predictor) / median(fewest, predictor)
        for predictor in _predictors(rounds)
    }
    worst = max(growth, key=lambda predictor: growth[predictor])
    said = ", ".join(f"{predictor} {times:.1f} times" for predictor, times in growth.items())
    return Claim(
        "grows_slowly",
        f"From {fewest} to {most} workers a round grows no more than the number of workers does, "
        f"within a factor of two (median: {said}).",
        growth[worst] < _GROWTH,
        of="evenstep",
        why=f"it grows {growth[worst]:.1f} times with {worst}, and less than {_GROWTH:g} times is "
        "asked; the reason is not known",
    )


_DIFFERENCES = [
    "The paper had a machine for each worker, and one for the manager with the parameter server; "
    "here one machine's cores play them all, and nothing is trained beside them.",
    "Rounds follow each other at once, not after an iteration each: what the manager does beside "
    "them, such as training NARX, falls into more of them than it would.",
    "What the paper calls log processing (reading TensorFlow's timeline) does not exist: t is "
    "timed in the loop. In its place stands a reading of CPU and memory usage; the thread that "
    "takes a snapshot of them every few hundredths of a second runs beside, and is not in it.",
    "The paper's 1.1 % holds for ResNet-32 and Inception-V3; there are no times of Inception-V3 on "
    "CPUs here, whose longer iterations would make the share smaller.",
]

EXPERIMENT = Experiment(
    "overhead",
    "time for measuring and batch size updating with 32, 64 and 96 workers",
    "Fig. 11, section 5.5",
    "measured",
    run,
)
