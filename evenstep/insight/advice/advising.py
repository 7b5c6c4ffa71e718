"""Advising: turns a case, or observations, into advice."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from evenstep.core import Floats, Ints
from evenstep.core.metrics import waiting_share
from evenstep.insight.advice.case import Case
from evenstep.insight.advice.fitting import Lines
from evenstep.insight.advice.observations import Observations
from evenstep.insight.advice.recorded import case_maker
from evenstep.insight.advice.totals import Total, better_total, compare_totals
from evenstep.insight.advice.worker_choice import Selection, best_without, times_without
from evenstep.policies.removal import WORTHWHILE

ROWS = 240
"""Iterations that are used, spread over the run."""
_ENTRIES = 60_000
_DRAWS = 100
_BLOCK = 8
"""Neighbouring iterations that are drawn together, as they are alike."""
COVERED = 0.9
"""Share of the draws between the two ends of an estimate."""


@dataclass(frozen=True)
class Estimate:
    """A value with a 90 % interval, from bootstrap draws of the recorded iterations."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, value: float, draws: Floats) -> Estimate:
        """Make the estimate of a value from its draws; the interval always contains the value.

        >>> Estimate.of(3.0, np.arange(101.0))
        Estimate(value=3.0, low=3.0, high=95.0)
        """
        low, high = np.quantile(draws, ((1 - COVERED) / 2, (1 + COVERED) / 2))
        return cls(value, min(float(low), value), max(float(high), value))


@dataclass(frozen=True)
class Advice:
    """The gain of balancing; seconds, fractions, and one entry per worker in lists."""

    source: str
    relative: bool
    """Whether times are shares of the slowest worker's time, and not seconds."""
    workers: Sequence[str]
    total: int
    plain: Estimate
    """Iteration time of plain BSP."""
    balanced: Estimate
    """Iteration time with sizes that follow lasting changes of the speeds."""
    saved: Estimate
    """Share of plain BSP's iteration time that balancing saves."""
    fixed: float
    """Iteration time with the batch sizes below, unchanged in the whole run."""
    plain_waiting: float
    balanced_waiting: float
    batch_sizes: Sequence[int]
    """The optimum under the conditions towards the end."""
    times: Sequence[float]
    """Times expected with these batch sizes."""
    plain_sizes: Sequence[int]
    plain_times: Sequence[float]
    speeds: Sequence[float]
    """Samples a second with the sizes of plain BSP."""
    overheads: Sequence[float] | None
    """Seconds that a batch takes regardless of its size; None where curves are given."""
    identified: Sequence[bool] | None
    """Whether sizes varied enough to identify the overhead; otherwise none is assumed."""
    times_without: Sequence[float]
    """Iteration time, balanced, without each worker; NaN where that is impossible."""
    not_worth_keeping: Sequence[str]
    """Workers that the job would be faster without."""
    selection: Selection | None
    """The workers to keep, if some must be removed."""
    totals: Sequence[Total]
    better_total: Total | None
    remarks: Sequence[str]

    @property
    def straggler(self) -> int:
        """The slowest worker, with even sizes."""
        return int(np.argmax(self.plain_times))

    @property
    def slowdown(self) -> float:
        """The straggler's time divided by the median worker's."""
        return self.plain_times[self.straggler] / float(np.median(self.plain_times))

    def as_json(self) -> dict[str, Any]:
        """Return everything in JSON's types; unknown values are None."""
        data = asdict(self)
        data["told"], data["crew"] = data.pop("identified"), data.pop("selection")
        without = data["times_without"]
        data["times_without"] = [None if math.isnan(time) else time for time in without]
        data["straggler"] = {"worker": self.workers[self.straggler], "slowdown": self.slowdown}
        return data


def advise(subject: Case | Observations, num_out: int = 0, seed: int = 0) -> Advice:
    """Return advice on a case or on observations, if `num_out` workers must be removed."""
    if isinstance(subject, Case):
        return _advise(subject, lambda rng: None, num_out, seed)
    count = min(ROWS, max(20, _ENTRIES // subject.num_workers), len(subject.times))
    rows = np.unique(np.linspace(0, len(subject.times) - 1, count).astype(int))
    make, lines = case_maker(subject, rows)
    return _advise(make(lines), lambda rng: make(lines.drawn(rng)), num_out, seed, lines, subject)


def _advise(
    case: Case,
    draw: Callable[[np.random.Generator], Case | None],
    num_out: int,
    seed: int,
    lines: Lines | None = None,
    seen: Observations | None = None,
) -> Advice:
    cluster, at, even = case.cluster, case.recent(), case.even
    sizes = cluster.optimum(at)
    plain, balanced = case.times(even), case.best_iteration_times()
    plain_times = cluster.expected_times(even, at)
    time = float(cluster.expected_times(sizes, at).max())
    least = cluster.expected_times(np.maximum(cluster.limits.bounds(cluster.total)[0], 1), at)
    without = times_without(cluster, at, np.argsort(-least, kind="stable"))
    totals = compare_totals(cluster, at, float(plain_times.max()))
    measures = plain.max(axis=1), balanced
    estimates = _estimates(measures, draw, np.random.default_rng(seed))
    return Advice(
        source="simulated" if seen is None else seen.source,
        relative=seen is not None and seen.relative,
        workers=tuple(cluster.workers), total=cluster.total,
        plain=estimates[0], balanced=estimates[1], saved=estimates[2],
        fixed=float(np.median(case.times(sizes).max(axis=1))),
        plain_waiting=waiting_share(plain),
        balanced_waiting=waiting_share(case.times(case.best_sizes())),
        batch_sizes=sizes.tolist(), times=cluster.expected_times(sizes, at).tolist(),
        plain_sizes=even.tolist(), plain_times=plain_times.tolist(),
        speeds=(even / plain_times).tolist(),
        overheads=None if lines is None else lines.overheads.tolist(),
        identified=None if lines is None else lines.identified.tolist(),
        times_without=without.tolist(),
        not_worth_keeping=[
            cluster.workers[i]
            for i in np.flatnonzero(without < (1 - WORTHWHILE) * time).tolist()
        ],
        selection=best_without(cluster, at, num_out) if num_out else None,
        totals=totals, better_total=better_total(totals, cluster.total),
        remarks=() if seen is None else seen.remarks,
    )  # fmt: skip


def _estimates(
    measures: tuple[Floats, Floats],
    draw: Callable[[np.random.Generator], Case | None],
    rng: np.random.Generator,
) -> list[Estimate]:
    """Return the estimates of plain and balanced iteration times, and of the share saved."""
    draws = []
    for _ in range(_DRAWS):
        other = draw(rng)
        plain, balanced = measures
        if other is not None:
            plain, balanced = other.times(other.even).max(axis=1), other.best_iteration_times()
        rows = _rows(len(plain), rng)
        draws.append((np.median(plain[rows]), np.median(balanced[rows])))
    plains, balances = np.array(draws).T
    value = [float(np.median(times)) for times in measures]
    return [
        Estimate.of(value[0], plains),
        Estimate.of(value[1], balances),
        Estimate.of(1 - value[1] / value[0], 1 - balances / plains),
    ]


def _rows(count: int, rng: np.random.Generator) -> Ints:
    """Draw `count` iterations, in blocks of neighbours."""
    block = min(_BLOCK, count)
    starts = rng.integers(0, count - block + 1, -(-count // block))
    rows: Ints = (starts[:, None] + np.arange(block)).ravel()[:count]
    return rows
