"""Views: the small JSON of a job that the page draws. Unknown numbers are null."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from evenstep.core import UNLIMITED, Floats, Ints
from evenstep.core.arrays import mean, median
from evenstep.estimates import Estimate
from evenstep.estimates.words import headline
from evenstep.insight.dashboard.job import DashboardJob, Recent
from evenstep.insight.dashboard.points import Points
from evenstep.insight.plots.plot_data import readable
from evenstep.insight.report.words import SOURCE_MEANS
from evenstep.insight.thinning import quantiles
from evenstep.runlog import Event

Json = dict[str, Any]

FEW = 12
"""Up to this number of workers, each has a line; of more, there are bands and the chosen one."""
LATE = 0.08
"""The last worker is late if the others finish earlier by this share of the iteration time."""
LONGEST_NAME = 60
LONGEST_TEXT = 300


def about(job: DashboardJob) -> Json:
    """Return the properties of a job that change only when workers join."""
    header = job.header
    return {
        "job": readable(header.job, LONGEST_NAME),
        "source": header.source,
        "means": SOURCE_MEANS[header.source],
        "policy": readable(header.policy, LONGEST_NAME),
        "predictor": readable(header.predictor, LONGEST_NAME),
        "scheme": readable(header.scheme, LONGEST_NAME),
        "total": header.total,
        "created": None if header.created is None else readable(header.created, 40),
        "workers": [readable(name, LONGEST_NAME) for name in job.all_workers],
    }


@np.errstate(all="ignore")
def now(
    job: DashboardJob, rows_from: int = 0, events_from: int = 0, settled: Json | None = None
) -> Json:
    """Return the newest iteration, and the rows and events that the page does not have yet.

    `settled` are the settled figures, if they are at hand.
    """
    last = job.last
    settled = figures(job) if settled is None else settled
    rows = [one for one in job.recent if one.number >= rows_from]
    num_dropped = job.num_events - len(job.events)
    events = list(job.events)[max(0, events_from - num_dropped) :]
    return {
        "num_iterations": job.num_iterations,
        "num_events": job.num_events,
        "present": job.present.tolist(),
        "iteration": None if last is None else last.row.iteration,
        "plan": None if last is None else last.row.plan,
        "iteration_time": None if last is None else number(last.row.iteration_time),
        "waiting_share": None if last is None else number(last.waiting_share),
        "figures": settled,
        "ended": None if job.end is None else readable(job.end.reason or "", LONGEST_TEXT),
        "problem": None if job.problem is None else readable(job.problem, LONGEST_TEXT),
        "last": None if last is None else {**_newest(job, last), "slowdowns": settled["slowdowns"]},
        "rows": [_row(job, one) for one in rows],
        "events": [_event(event) for event in events],
    }


def figures(job: DashboardJob) -> Json:
    """Return the settled figures of a job: of the second half of its iterations so far."""
    estimates = job.estimates()
    if estimates is None:
        unknown = dict.fromkeys(("iteration_time", "plain", "optimum", "waiting_share", "gain"))
        words = "No iteration has a known time yet."
        window = "no iteration yet"
        return {"window": window, **unknown, "straggler": None, "sentence": words, "slowdowns": []}
    slow = estimates.straggler
    name = "" if slow is None else readable(slow.worker, LONGEST_NAME)
    return {
        "window": estimates.about,
        "iteration_time": number(estimates.iteration_time),
        "plain": _between(estimates.plain),
        "optimum": _between(estimates.optimum),
        "waiting_share": number(estimates.waiting_share),
        "gain": _between(estimates.gain),
        "straggler": None
        if slow is None or not slow.is_clear
        else {"worker": job.all_workers.index(slow.worker), "slowdown": number(slow.slowdown)},
        "sentence": headline(estimates, name),
        "slowdowns": _round(_slowdowns(job)),
    }


@np.errstate(all="ignore")
def history(job: DashboardJob, worker: int) -> Json:
    """Return the whole run in points, with the details of one worker."""
    whole = job.history.whole
    return {
        "every": job.history.every,
        "iterations": _round(job.history.iterations.means[:, 0], digits=9),
        "iteration_times": _span(whole["iteration_times"]),
        "plain": _round(whole["plain"].means[:, 0]),
        "optimum": _round(whole["optimum"].means[:, 0]),
        "waiting_shares": _round(whole["waiting_shares"].means[:, 0]),
        "batch_sizes": _sizes(job, worker),
        "worker": _worker(job, worker),
    }


def overlay(job: DashboardJob, worker: str) -> Json:
    """Return the history of a second run, with the batch sizes of its worker of this name."""
    sizes = job.history.of_workers.get("batch_sizes")
    return {
        "job": readable(job.header.job, LONGEST_NAME),
        "source": job.header.source,
        "iterations": _round(job.history.iterations.means[:, 0], digits=9),
        "iteration_times": _round(job.history.whole["iteration_times"].means[:, 0]),
        "batch_sizes": _round(sizes.means[:, job.all_workers.index(worker)])
        if sizes is not None and worker in job.all_workers
        else None,
    }


@np.errstate(all="ignore")
def slowest(job: DashboardJob) -> int:
    """Return the straggler, the first worker if no speed is known."""
    slowdowns = _slowdowns(job)
    return 0 if np.isnan(slowdowns).all() else int(np.nanargmax(slowdowns))


def late(recent: Recent) -> int | None:
    """Return the worker that the others waited for, None if they lost little."""
    times = recent.row.times
    if np.isnan(times).all() or not recent.row.iteration_time > 0:
        return None
    last = int(np.nanargmax(times))
    others = float(mean(np.delete(times, last), axis=0))
    lost = (float(times[last]) - others) / recent.row.iteration_time
    return int(recent.positions[last]) if lost > LATE else None


def number(value: float, digits: int = 7) -> float | None:
    """Return a number with the digits of a run log, None where it is unknown.

    >>> number(0.1234567891), number(math.nan)
    (0.1234568, None)
    """
    return float(f"{value:.{digits}g}") if math.isfinite(value) else None


def _slowdowns(job: DashboardJob) -> Floats:
    """Return how many times slower than the median each worker is; NaN for absent ones."""
    slowdowns = np.full(len(job.all_workers), np.nan)
    estimates = job.estimates()
    if estimates is not None and len(estimates.workers) > 1:
        times = np.array(estimates.plain_times)
        positions = [job.all_workers.index(name) for name in estimates.workers]
        slowdowns[positions] = times / median(times, axis=0)
    return slowdowns


def _between(estimate: Estimate) -> Json | None:
    """Return a value with its range, None if it is unknown."""
    named = {name: number(getattr(estimate, name)) for name in ("value", "low", "high")}
    return None if named["value"] is None else named


def _newest(job: DashboardJob, recent: Recent) -> Json:
    """Return all quantities of the newest iteration, with an entry for each worker."""
    row = recent.row
    caps = None
    if row.caps is not None:
        caps = np.where(row.caps >= UNLIMITED, np.nan, row.caps.astype(np.float64))
    quantities = {
        "batch_sizes": row.batch_sizes, "times": row.times, "waiting": recent.waiting,
        "speeds": row.speeds, "predicted_speeds": row.predicted_speeds, "cpu": row.cpu,
        "memory": row.memory, "device_memory": row.device_memory, "caps": caps,
    }  # fmt: skip
    return {name: _spread(job, recent, values, 7) for name, values in quantities.items()}


def _row(job: DashboardJob, recent: Recent) -> Json:
    row = recent.row
    return {
        "number": recent.number,
        "iteration": row.iteration,
        "plan": row.plan,
        "start": number(row.start, digits=12),
        "time": number(row.iteration_time),
        "batch_sizes": _spread(job, recent, row.batch_sizes),
        "times": _spread(job, recent, row.times),
        "waiting": _spread(job, recent, recent.waiting),
        "late": late(recent),
    }


def _event(event: Event) -> Json:
    sizes = event.batch_sizes
    return {
        "kind": event.kind,
        "iteration": event.iteration,
        "plan": event.plan,
        "worker": None if event.worker is None else readable(event.worker, LONGEST_NAME),
        "words": readable(_words(event), LONGEST_TEXT),
        "batch_sizes": list(sizes) if sizes is not None and len(sizes) <= FEW else None,
        "predicted_time": event.predicted_time,
    }


def _words(event: Event) -> str:
    own = {
        "phase": event.phase,
        "advice": event.advice,
        "limit": f"at most {event.cap}",
        "note": event.text,
    }
    return ": ".join(filter(None, (own.get(event.kind), event.reason)))


def _sizes(job: DashboardJob, worker: int) -> Json:
    """Return batch sizes over time: a line for each of a few workers, bands for many."""
    points = job.history.of_workers.get("batch_sizes")
    if points is None:
        return {"lines": {}, "bands": []}
    means = points.means
    if len(job.all_workers) <= FEW:
        return {"lines": {i: _round(means[:, i]) for i in range(means.shape[1])}, "bands": []}
    bands = [_round(band) for band in quantiles(means)]
    return {"lines": {worker: _round(means[:, worker])}, "bands": bands}


def _worker(job: DashboardJob, worker: int) -> Json:
    def mean(name: str) -> list[float | None] | None:
        points = job.history.of_workers.get(name)
        return None if points is None else _round(points.means[:, worker])

    speeds = job.history.of_workers.get("speeds")
    return {
        "worker": worker,
        "speeds": None if speeds is None else _span(speeds, worker),
        **{name: mean(name) for name in ("predicted_speeds", "cpu", "memory", "device_memory")},
    }


def _span(points: Points, column: int = 0) -> Json:
    return {
        "mean": _round(points.means[:, column]),
        "least": _round(points.smallest[:, column]),
        "most": _round(points.largest[:, column]),
    }


def _spread(
    job: DashboardJob, recent: Recent, values: Floats | Ints | None, digits: int = 5
) -> list[float | None] | None:
    spread = job.spread(recent, values)
    return None if spread is None else _round(spread, digits)


def _round(values: Floats, digits: int = 5) -> list[float | None]:
    entries: Sequence[float] = values.tolist()
    return [number(value, digits) for value in entries]
