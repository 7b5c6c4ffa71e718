"""Two real workers under a real load, where this machine has a core for each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from evenstep.core import Floats
from evenstep.errors import EvenstepError
from reproduction.experiment import Progress, Settings
from reproduction.real_load_run import (
    BEST_OF,
    BSP,
    CONTENDERS,
    KIND,
    NARX,
    TOTAL,
    changing_machines,
    run_real_load,
)
from reproduction.result import Claim, Curve, Plot, Result, Row, Table

LEARNS_FROM = 500
"""Observations after which NARX is trained, as in the paper; it is EMA before."""
_FEWEST = 6
"""Rounds once NARX learns that tell something."""
_LEAST_SHARE = 0.01
UNLEARNED = "EMA: too few iterations to learn"


@dataclass(frozen=True)
class Scale:
    """How long workers train under load."""

    seconds: float
    speedup: float
    """How many times as fast the trace is replayed."""
    block: int
    """Iterations of one contender, before the next one's turn."""


QUICK = Scale(seconds=15, speedup=60, block=6)
"""A quarter of the hour."""
FULL = Scale(seconds=280, speedup=25, block=16)
"""The hour twice, which takes 288 s: NARX learns in the first, and is looked at in the second."""


@dataclass(frozen=True)
class RealLoad:
    """What `run_real_load` returned; in the first round all warmed up, and the load began."""

    rounds: Sequence[dict[str, Any]]
    loads: Sequence[dict[str, Any]]

    def times(self, name: str, start: int = 1) -> Floats:
        """Return the seconds of a contender's iterations from a round on.

        The first of every block is left out: its plan goes by the usage of a while ago.
        """
        times: Floats = np.array([each[name]["times"][1:] for each in self.rounds[start:]])
        return times.ravel()

    def means(self, name: str, start: int = 1) -> Floats:
        """Return the mean iteration time of a contender in each round from one on."""
        means: Floats = self.times(name, start).reshape(len(self.rounds) - start, -1).mean(axis=1)
        return means

    def ratio(self, name: str, start: int | None = 1) -> float | None:
        """Return the mean iteration time over BSP's, from a round on; None where there is none."""
        if start is None:
            return None
        return float(self.times(name, start).mean() / self.times(BSP, start).mean())

    @property
    def learned(self) -> int | None:
        """The first round at whose beginning NARX had what it learns from; None if too late."""
        done = np.cumsum([0, *(len(each[NARX]["times"]) for each in self.rounds)])
        first = max(1, int(np.searchsorted(done, LEARNS_FROM)))
        return first if first + _FEWEST <= len(self.rounds) else None

    def cpus(self, name: str | None = None) -> Floats:
        """Return c of both workers in every block of a contender, or of all: (block, worker)."""
        names = list(CONTENDERS) if name is None else [name]
        return np.array([each[name]["cpu"] for each in self.rounds[1:] for name in names])

    def at_best(self, start: int = 1) -> float:
        """What LB-BSP could have been of BSP from a round on: times as 1 / c, all else for free."""
        cpus = np.maximum(self.cpus(BSP)[start - 1 :], _LEAST_SHARE)
        bsp = self.means(BSP, start)
        return float((bsp * cpus.min(axis=1) / cpus.mean(axis=1)).sum() / bsp.sum())


def for_real(settings: Settings, progress: Progress) -> Result:
    """Return what LB-BSP does under real load; where that cannot be done, the reason alone."""
    scale = settings.choose(QUICK, FULL)
    try:
        kept = settings.parts.get(
            f"loaded/{scale.seconds:g}",
            lambda: run_real_load(scale.seconds, scale.speedup, scale.block, progress),
        )
    except EvenstepError as problem:
        return Result(differences=[f"Not for real: {problem}."])
    run = RealLoad(**kept)
    return Result([_times(run, scale), _loads(run)], [_plot(run)], _claims(run), _DIFFERENCES)


def _times(run: RealLoad, scale: Scale) -> Table:
    late = "which it got beyond" if run.learned else "and hardly got further"
    return Table(
        "For real: two workers under evenstep load",
        "measured",
        [_row(run, name) for name in CONTENDERS],
        "The trace's 32 workers are two here: two processes under DistributedDataParallel (gloo), "
        "with a core and a thread each, which train a small convolutional net on digits, "
        f"{TOTAL} samples an iteration. On each core an `evenstep load` replays a machine of the "
        f"trace, {scale.speedup:g} times as fast, for {scale.seconds:g} s. "
        f"Contenders take turns, {scale.block} iterations each, in {len(run.rounds) - 1} rounds, "
        "so that all see the same load; the first iteration of each block is not counted. Samples "
        "of worker 0 are the least and the most that it had in an iteration. "
        f"NARX is EMA for its first {LEARNS_FROM} iterations, {late} here. By c of both workers, "
        f"{run.at_best():.2f} of BSP's mean is what equal finish times would have been.",
    )


def _row(run: RealLoad, name: str) -> Row:
    times, bsp = (run.times(each) for each in (name, BSP))
    sizes = np.concatenate([each[name]["sizes"] for each in run.rounds[1:]])
    return {
        "scheme": _label(run, name),
        "iterations": times.size,
        "ms: median": 1e3 * float(np.median(times)),
        "mean": 1e3 * float(times.mean()),
        "median / BSP": float(np.median(times) / np.median(bsp)),
        "mean / BSP": run.ratio(name),
        "once NARX learns": run.ratio(name, run.learned),
        "samples of worker 0": [int(sizes.min()), int(sizes.max())],
    }


def _loads(run: RealLoad) -> Table:
    return Table(
        "The load of both cores",
        "measured",
        [
            {
                "worker": i,
                "core": load["cores"][0],
                "machine of the trace": machine,
                "load wanted": load["cpu_wanted"],
                "load got": load["cpu_got"],
                **{
                    f"{what}: least / most": [
                        min(level[f"cpu_{what}"] for level in load["levels"]),
                        max(level[f"cpu_{what}"] for level in load["levels"]),
                    ]
                    for what in ("wanted", "got")
                },
                "c of the worker": float(c.mean()),
                "c: least / most": [float(c.min()), float(c.max())],
            }
            for i, (load, machine, c) in enumerate(
                zip(run.loads, changing_machines(), run.cpus().T, strict=True)
            )
        ],
        "Shares of a core, over the run and by the levels of the trace (B:usage). c is the part "
        "that the worker got of the CPU time it wanted, of the thread that computes, in a block; "
        "what else ran on this machine is in it.",
    )


def _plot(run: RealLoad) -> Plot:
    at = [each["at"] for each in run.rounds[1:]]
    return Plot(
        "Two workers under load: iteration time in every round",
        "measured",
        "seconds",
        "ms",
        [Curve(_label(run, name), at, (1e3 * run.means(name)).tolist()) for name in CONTENDERS],
    )


def _label(run: RealLoad, name: str) -> str:
    """Return what a contender is called; NARX that has hardly learned is EMA."""
    return f"{name} ({UNLEARNED})" if name == NARX and run.learned is None else name


def _claims(run: RealLoad) -> list[Claim]:
    claims = [_claim("real_best_of", "best_of", run, BEST_OF, start=1)]
    if run.learned is not None:
        claims.append(_claim("real_narx", "NARX, once it learns,", run, NARX, run.learned))
    return claims


def _claim(name: str, predictor: str, run: RealLoad, scheme: str, start: int) -> Claim:
    ours, bsp = (run.means(each, start) for each in (scheme, BSP))
    ratio, faster = float(ours.mean() / bsp.mean()), int((ours < bsp).sum())
    most = 1 - run.at_best(start)
    return Claim(
        name,
        f"Under real load LB-BSP with {predictor} is faster per iteration than BSP: on average "
        f"({ratio:.2f} of its time), and in most rounds ({faster} of {bsp.size}).",
        ratio < 1 and faster > bsp.size / 2,
        of="evenstep",
        why=f"by c of both workers, {most:.0%} of BSP's time was to be gained at best; what became "
        "of it is not known",
    )


_DIFFERENCES = [
    "For real there are two workers in place of 32, on cores of one kind. They have the load of "
    f"the two {KIND} whose load changes most over the hour (the largest standard deviation), a "
    "rule by the trace alone; the hour of usage levels, which drives the virtual cluster too, as "
    "the one of tasks hardly changes on any machine. Memory is held to at most 1 % of what is "
    "available. What two unequal workers can gain is not what 32 can.",
    "In each of the two processes there are two balancers, for two predictors; the threads with "
    "which they read c have to wait for the core too, which makes c smaller and noisier than with "
    "one.",
]
