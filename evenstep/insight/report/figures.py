"""The figures of a run: its estimates, those of a run without balancing, medians and lines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from evenstep.core import Floats
from evenstep.core.arrays import median
from evenstep.errors import InvalidSetting
from evenstep.estimates import Estimate, Estimates, Estimator, estimates_of, follow, without_nan
from evenstep.insight.thinning import group_medians, group_size
from evenstep.runlog.iteration_row import waiting_of
from evenstep.runlog.run_log import RunLog, Segment


@dataclass(frozen=True)
class Phase:
    """The workers in some iterations; medians, one entry per worker of the run log."""

    batch_sizes: list[float]
    times: list[float]
    """t, in seconds."""
    speeds: list[float]
    """v, in samples per second."""
    waiting: list[float]
    """Seconds."""


@dataclass(frozen=True)
class Figures:
    """The figures of a run; seconds and shares."""

    source: str
    job: str
    policy: str
    predictor: str
    total: int
    workers: Sequence[str]
    num_iterations: int
    num_skipped: int
    """Iterations, of these, that were skipped because the log is long."""
    ended: bool
    """Whether the log has the event that ends a run."""
    complete: bool
    """False if the last line of the log is incomplete."""
    estimates: Estimates | None
    """Of the settled iterations; None before any time is known."""
    phase: Phase | None
    """The workers in these iterations."""
    plain_run: Estimates | None
    """Those of another run, without balancing, if it was given."""
    plain_phase: Phase | None
    plain_is: str
    """What that run is called."""
    known_optimum: float | None
    """The best possible iteration time, in seconds, where the devices are emulated."""

    @property
    def plain(self) -> Estimate | None:
        """Plain BSP's iteration time: measured in the other run, or estimated from this one."""
        if self.plain_run is not None:
            return Estimate.exactly(self.plain_run.iteration_time)
        return None if self.estimates is None else self.estimates.plain

    @property
    def gain(self) -> Estimate | None:
        """Plain BSP's iteration time over that of the run."""
        if self.estimates is None or self.plain is None:
            return None
        return self.plain * (1 / self.estimates.iteration_time)

    @property
    def optimum(self) -> float | None:
        """The best possible iteration time, in seconds: known, or estimated from this run."""
        if self.known_optimum is not None or self.estimates is None:
            return self.known_optimum
        return self.estimates.optimum.value

    @property
    def above_optimum(self) -> float | None:
        """How much longer than the optimum an iteration takes: 0.03 is 3 %."""
        if self.optimum is None or self.estimates is None:
            return None
        return self.estimates.iteration_time / self.optimum - 1

    def as_json(self) -> dict[str, Any]:
        """Return everything in JSON's types; unknown values are None."""
        data = asdict(self)
        for name in ("estimates", "plain_run"):
            estimates: Estimates | None = getattr(self, name)
            data[name] = None if estimates is None else estimates.as_json()
        for name in ("plain", "gain"):
            estimate: Estimate | None = getattr(self, name)
            data[name] = None if estimate is None else asdict(estimate)
        data["optimum"], data["above_optimum"] = self.optimum, self.above_optimum
        known: dict[str, Any] = without_nan(data)
        return known


def figures_of(
    run_log: RunLog,
    plain: RunLog | None = None,
    optimum: float | None = None,
    estimates: Estimates | None = None,
) -> Figures:
    """Return the figures of a run log; `plain` is the run log of the job without balancing.

    `estimates` are those of the run log, if they are at hand.
    """
    if plain is not None:
        _check_comparable(run_log, plain)
    if estimates is None:
        estimates = estimates_of(run_log)
    plain_run = None if plain is None else estimates_of(plain)
    header, parts = run_log.header, run_log.parts
    return Figures(
        source=header.source, job=header.job, policy=header.policy, predictor=header.predictor,
        total=parts[-1][1] if parts else header.total, workers=run_log.workers,
        num_iterations=run_log.num_iterations + run_log.num_skipped,
        num_skipped=run_log.num_skipped, ended=run_log.ended, complete=run_log.complete,
        estimates=estimates, phase=_phase(run_log, estimates),
        plain_run=plain_run,
        plain_phase=None if plain is None else _phase(plain, plain_run),
        plain_is="" if plain is None else _name_of(plain), known_optimum=optimum,
    )  # fmt: skip


def _check_comparable(run_log: RunLog, plain: RunLog) -> None:
    jobs = [(len(log.header.workers), log.header.total) for log in (run_log, plain)]
    if jobs[0] != jobs[1]:
        raise InvalidSetting(
            "a run to compare with must be of the same job: {} workers and a total of {}, got {} "
            "workers and {}".format(*jobs[0], *jobs[1])
        )


def _name_of(plain: RunLog) -> str:
    is_plain = plain.header.policy == "even" or plain.header.settings.get("mode") == "off"
    return "plain BSP" if is_plain else f"policy {plain.header.policy}"


def _phase(run_log: RunLog, estimates: Estimates | None) -> Phase | None:
    """Return the medians of the iterations that estimates are about."""
    if estimates is None:
        return None
    rows = (run_log.iterations >= estimates.first) & (run_log.iterations <= estimates.last)
    times = run_log.matrix("times")[rows]
    return Phase(
        batch_sizes=_medians(run_log.matrix("batch_sizes")[rows]),
        times=_medians(times),
        speeds=_medians(run_log.matrix("speeds")[rows]),
        waiting=_medians(waiting_of(run_log.matrix("waiting")[rows], times)),
    )


def _medians(values: Floats) -> list[float]:
    medians: list[float] = median(values, axis=0).tolist()
    return medians


_ENTRIES = 60_000
"""Times (points x workers) of a line."""


@dataclass(frozen=True, eq=False)
class Retrospect:
    """The figures of a run, and iteration times that plain BSP and the optimum would have had."""

    estimates: Estimates | None
    """Of the settled iterations; None before any time is known."""
    plain: Floats
    """A line: seconds with even sizes, one per iteration of the run log; NaN where unknown."""
    optimum: Floats
    """A line: seconds with the best sizes."""


def look_back(run_log: RunLog) -> Retrospect:
    """Return the estimates of a run log."""
    last: Estimator | None = None
    lines = [np.zeros((2, 0))]
    for segment, estimator in follow(run_log):
        lines.append(_lines(segment, estimator))
        last = estimator
    plain, optimum = np.concatenate(lines, axis=1)
    return Retrospect(None if last is None else last.estimates(), plain, optimum)


def _lines(segment: Segment, estimator: Estimator) -> Floats:
    """Return the two lines of a part of the run; of a long one, neighbours are grouped."""
    length, count = segment.times.shape
    every = max(group_size(length), -(-length * count // _ENTRIES))
    sizes = np.rint(group_medians(segment.batch_sizes.astype(np.float64), every))
    times = group_medians(segment.times, every)
    real = np.fmax.reduce(times, axis=1)
    ratios = np.stack(estimator.compare(sizes.astype(np.int64), times)) / real
    lines: Floats = np.repeat(ratios, every, axis=1)[:, :length] * segment.iteration_times
    return lines
