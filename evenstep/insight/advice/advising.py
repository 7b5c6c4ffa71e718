"""Advising: turns a case, or observations, into advice."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from evenstep.core.metrics import waiting_share
from evenstep.estimates import Estimate, Estimates
from evenstep.estimates.comparing import resampled
from evenstep.insight.advice.case import Case
from evenstep.insight.advice.observations import Observations
from evenstep.insight.advice.totals import Total, better_total, compare_totals
from evenstep.insight.advice.worker_choice import Selection, best_without, times_without
from evenstep.policies.removal import WORTHWHILE
from evenstep.simulator.clusters.cluster import Cluster
from evenstep.simulator.clusters.curves import Curves, affine
from evenstep.simulator.clusters.noise import QUIET, Noise
from evenstep.simulator.clusters.scheduled import Scheduled

ROWS = 240
"""Iterations of a cluster that are used, spread over the run."""
_DRAWS = 100
_BLOCK = 8
"""Neighbouring iterations of a cluster that are drawn together."""


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
    """Iteration time of the optimum: with sizes that follow lasting changes of the speeds."""
    saved: Estimate
    """Share of plain BSP's iteration time that balancing saves."""
    waiting_share: float
    """The part of the workers' time spent waiting: in the run, or with plain BSP in a cluster."""
    estimates: Estimates | None
    """The estimates of the run; None for a cluster."""
    batch_sizes: Sequence[int]
    """The best sizes for the mean speeds of the workers."""
    times: Sequence[float]
    """Mean times of the workers with these batch sizes."""
    plain_sizes: Sequence[int]
    plain_times: Sequence[float]
    speeds: Sequence[float]
    """Samples a second with the sizes of plain BSP."""
    overheads: Sequence[float] | None
    """Seconds that a batch takes regardless of its size; None where curves are given."""
    identified: Sequence[bool] | None
    """Whether changes of size tell the overhead; otherwise a likely one is assumed."""
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
    def is_balanced(self) -> bool:
        """Whether this is about a run with other sizes than those of plain BSP."""
        return self.estimates is not None and not self.estimates.is_even

    @property
    def straggler(self) -> int:
        """The worker that takes longest with even sizes."""
        return int(np.argmax(self.plain_times))

    @property
    def slowdown(self) -> float:
        """The straggler's time divided by the median worker's."""
        if self.estimates is not None and self.estimates.straggler is not None:
            return self.estimates.straggler.slowdown
        return self.plain_times[self.straggler] / float(np.median(self.plain_times))

    def as_json(self) -> dict[str, Any]:
        """Return everything in JSON's types; unknown values are None."""
        data = asdict(self)
        data["estimates"] = None if self.estimates is None else self.estimates.as_json()
        without = data["times_without"]
        data["times_without"] = [None if math.isnan(time) else time for time in without]
        data["straggler"] = {"worker": self.workers[self.straggler], "slowdown": self.slowdown}
        return data


def advise(subject: Case | Observations, num_out: int = 0, seed: int = 0) -> Advice:
    """Return advice on a case or on observations, if `num_out` workers must be removed."""
    if isinstance(subject, Case):
        return _advise(subject, _of_case(subject, seed), num_out)
    estimates = subject.estimates()
    found = _Found(
        subject.source, subject.relative, estimates.plain, estimates.optimum,
        estimates.waiting_share, subject.remarks, estimates,
    )  # fmt: skip
    return _advise(_case_of(subject, estimates), found, num_out)


@dataclass(frozen=True, eq=False)
class _Found:
    """What is known of the iterations as a whole."""

    source: str
    relative: bool
    plain: Estimate
    balanced: Estimate
    waiting_share: float
    remarks: Sequence[str] = ()
    estimates: Estimates | None = None


def _advise(case: Case, found: _Found, num_out: int) -> Advice:
    cluster, at, even = case.cluster, case.recent(), case.even
    sizes = cluster.optimum(at)
    plain_times = cluster.expected_times(even, at)
    quiet = float(cluster.expected_times(sizes, at).max())
    # Noise makes an iteration longer than its slowest worker takes on average: by as much with
    # other workers, or another total.
    noise = found.balanced.value / quiet
    least = cluster.expected_times(np.maximum(cluster.limits.bounds(cluster.total)[0], 1), at)
    without = noise * times_without(cluster, at, np.argsort(-least, kind="stable"))
    totals = compare_totals(cluster, at, found.plain.value / noise, noise)
    estimates = found.estimates
    shares = None if estimates is None else np.array(estimates.overheads)
    return Advice(
        source=found.source, relative=found.relative,
        workers=tuple(cluster.workers), total=cluster.total,
        plain=found.plain, balanced=found.balanced, saved=_saved(found.balanced, found.plain),
        waiting_share=found.waiting_share, estimates=estimates,
        batch_sizes=sizes.tolist(), times=cluster.expected_times(sizes, at).tolist(),
        plain_sizes=even.tolist(), plain_times=plain_times.tolist(),
        speeds=(even / plain_times).tolist(),
        overheads=None if shares is None else (shares * plain_times).tolist(),
        identified=None if estimates is None else list(estimates.identified),
        times_without=without.tolist(),
        not_worth_keeping=[
            cluster.workers[i]
            for i in np.flatnonzero(without < (1 - WORTHWHILE) * found.balanced.value).tolist()
        ],
        selection=best_without(cluster, at, num_out, noise) if num_out else None,
        totals=totals, better_total=better_total(totals, cluster.total),
        remarks=found.remarks,
    )  # fmt: skip


def _saved(balanced: Estimate, plain: Estimate) -> Estimate:
    """Return the share of plain BSP's time that the optimum saves."""
    ends = [(balanced.high, plain.low), (balanced.low, plain.high)]
    low, high = (1 - best / whole for best, whole in ends)
    return Estimate(1 - balanced.value / plain.value, low, high)


def _case_of(seen: Observations, estimates: Estimates) -> Case:
    """Return workers with the mean times and overheads of the estimates, without noise."""
    count = seen.num_workers
    even = np.array(estimates.plain_sizes)
    times, shares = np.array(estimates.plain_times), np.array(estimates.overheads)
    lines = zip((shares * times).tolist(), ((1 - shares) * times / even).tolist(), strict=True)
    cluster = Cluster(
        name="recorded", workers=seen.workers,
        curves=Curves.of([affine(overhead, slope) for overhead, slope in lines]), cap=seen.caps,
        environment=Scheduled(np.zeros(count), Noise.of([QUIET] * count, 0)),
        total=seen.total, iterations=1,
    )  # fmt: skip
    return Case.of(cluster, [cluster.conditions(0, 0.0)])


def _of_case(case: Case, seed: int) -> _Found:
    """Return the iteration times in the conditions of a case, over blocks of its iterations."""
    rng = np.random.default_rng(seed)
    times = case.times(case.even)
    measures = times.max(axis=1), case.best_iteration_times()
    rows = [resampled(len(times), _BLOCK, rng) for _ in range(_DRAWS)]
    plain, balanced = (
        Estimate.of(np.array([values[some].mean() for some in rows]), float(values.mean()))
        for values in measures
    )
    return _Found("simulated", False, plain, balanced, waiting_share(times))
