"""The figures of a run: the straggler, iteration times and waiting, before and after balancing.

Before is plain BSP, from another run log, or else the iterations under the first plan; after is the
second half of the run, when the sizes have settled.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from evenstep.core import Bools, Floats
from evenstep.insight.retrospect import Estimates
from evenstep.insight.thinning import median
from evenstep.runlog.iteration_row import share_waited, waiting_of
from evenstep.runlog.run_log import RunLog


@dataclass(frozen=True)
class Phase:
    """Some iterations of a run; one entry per worker in lists, in the order of the run log."""

    num_iterations: int
    """Iterations whose times are known."""
    iteration_time: float
    """Median seconds until the last worker finished."""
    waiting_share: float
    """The fraction of the workers' time that was spent waiting."""
    batch_sizes: list[float]
    """Median x."""
    times: list[float]
    """Median t, in seconds."""
    speeds: list[float]
    """Median v, in samples per second."""
    waiting: list[float]
    """Median waiting, in seconds."""


@dataclass(frozen=True)
class Straggler:
    """The slowest worker before balancing."""

    worker: str
    slowdown: float
    """The median worker's speed divided by this one's."""


@dataclass(frozen=True)
class Figures:
    """The figures of a run; seconds and fractions."""

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
    before_is: str
    """A description of `before`."""
    before: Phase | None
    after: Phase | None
    straggler: Straggler | None
    optimum: float | None
    """The best possible iteration time, in seconds, if it is known."""
    optimum_is: str
    """`known`, or `estimated` by lines fitted to the run itself."""
    plain_estimate: float | None
    """Iteration time of plain BSP, in seconds, estimated by the same lines."""

    @property
    def speedup(self) -> float | None:
        """Iteration time before, divided by that after."""
        if self.before is None or self.after is None or not self.after.iteration_time > 0:
            return None
        return self.before.iteration_time / self.after.iteration_time

    @property
    def above_optimum(self) -> float | None:
        """How much longer than the optimum an iteration takes: 0.03 is 3 %."""
        if self.optimum is None or self.after is None:
            return None
        return self.after.iteration_time / self.optimum - 1

    def as_json(self) -> dict[str, Any]:
        """Return everything in JSON's types; unknown values are None."""
        data = {**asdict(self), "speedup": self.speedup, "above_optimum": self.above_optimum}
        known: dict[str, Any] = _without_nan(data)
        return known


def figures_of(
    run_log: RunLog,
    plain: RunLog | None = None,
    optimum: float | None = None,
    estimates: Estimates | None = None,
) -> Figures:
    """Return the figures of a run log; `plain` is the run log of the job without balancing.

    `estimates` are the iteration times with other sizes, used where they are not known.
    """
    plans = np.concatenate([np.zeros(0, int), *(segment.plans for segment in run_log.segments)])
    at_first = plans == plans[0] if len(plans) else np.zeros(0, bool)
    changed = not at_first.all()
    late = np.arange(len(plans)) >= len(plans) // 2
    # Iterations of another total are not compared.
    total, has_total = _last_total(run_log)
    before, before_is = None, ""
    if plain is not None:
        everything = np.ones(plain.num_iterations, bool)
        before, before_is = _phase(plain, everything), _name_of(plain)
    elif changed and has_total[0]:
        before = _phase(run_log, at_first)
        before_is = "even batch sizes at the start" if _is_even(before) else "the first plan"
    settled = late & ~at_first & has_total if changed else np.ones(len(plans), bool)
    after = _phase(run_log, settled)
    optimum_is = "" if optimum is None else "known"
    plain_estimate = None
    if estimates is not None:
        plain_estimate = _typical(estimates.plain[settled])
        if optimum is None:
            optimum = _typical(estimates.optimum[settled])
            optimum_is = "" if optimum is None else "estimated"
    header = run_log.header
    return Figures(
        source=header.source, job=header.job, policy=header.policy, predictor=header.predictor,
        total=total, workers=run_log.workers,
        num_iterations=run_log.num_iterations + run_log.num_skipped,
        num_skipped=run_log.num_skipped,
        ended=run_log.ended, complete=run_log.complete, before_is=before_is, before=before,
        after=after, straggler=_straggler(run_log, plain, before or after), optimum=optimum,
        optimum_is=optimum_is, plain_estimate=plain_estimate,
    )  # fmt: skip


def _last_total(run_log: RunLog) -> tuple[int, Bools]:
    """Return the total at the end of a run, and which iterations have it."""
    parts = run_log.parts
    last = parts[-1][1] if parts else run_log.header.total
    has_it = [np.full(len(part.iterations), total == last) for part, total in parts]
    return last, np.concatenate([np.zeros(0, bool), *has_it])


def _typical(times: Floats) -> float | None:
    """Return the median of the known values, None if they are less than half of all."""
    known = times[np.isfinite(times)]
    return float(np.median(known)) if len(known) and 2 * len(known) >= len(times) else None


def _name_of(plain: RunLog) -> str:
    is_plain = plain.header.policy == "even" or plain.header.settings.get("mode") == "off"
    return "plain BSP" if is_plain else f"policy {plain.header.policy}"


def _is_even(phase: Phase | None) -> bool:
    return phase is not None and max(phase.batch_sizes) - min(phase.batch_sizes) <= 1


def _phase(run_log: RunLog, rows: Bools) -> Phase | None:
    """Return the figures of some iterations, None if none of their times is known."""
    times = run_log.matrix("times")
    rows = rows & ~np.isnan(times).all(axis=1)
    if not rows.any():
        return None
    times = times[rows]
    waiting = waiting_of(run_log.matrix("waiting")[rows], times)
    return Phase(
        num_iterations=int(rows.sum()),
        iteration_time=float(median(run_log.iteration_times[rows], axis=0)),
        waiting_share=share_waited(waiting, times),
        batch_sizes=_medians(run_log.matrix("batch_sizes")[rows]),
        times=_medians(times),
        speeds=_medians(run_log.matrix("speeds")[rows]),
        waiting=_medians(waiting),
    )


def _medians(values: Floats) -> list[float]:
    medians: list[float] = median(values, axis=0).tolist()
    return medians


def _straggler(run_log: RunLog, plain: RunLog | None, phase: Phase | None) -> Straggler | None:
    workers = (plain or run_log).workers
    if phase is None or len(workers) < 2:
        return None
    speeds = np.array(phase.speeds)
    if np.isnan(speeds).all():
        return None
    slowest = int(np.nanargmin(speeds))
    return Straggler(workers[slowest], float(np.nanmedian(speeds) / speeds[slowest]))


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_nan(entry) for name, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_nan(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
