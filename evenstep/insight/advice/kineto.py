"""Times from traces of the PyTorch profiler (Kineto, Chrome's JSON), one file per worker.

An iteration is a ``ProfilerStep#k``. It includes the waiting in collectives, so the time in which
only a collective of gloo or NCCL was running is subtracted.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from evenstep.core import Floats
from evenstep.errors import DataFileError
from evenstep.insight.advice.observations import Observations, given_sizes

_STEP = re.compile(r"ProfilerStep#(\d{1,18})$")
_COLLECTIVE = re.compile(r"(gloo:|nccl:|nccl(Dev)?Kernel)")
_MICRO = 1e-6


def observations_of_traces(
    texts: Mapping[str, str], batch_sizes: Sequence[int] | None
) -> Observations:
    """Read the traces of all workers; `texts` has the contents of the files by name."""
    traces = [_Trace(name, text) for name, text in texts.items()]
    traces.sort(key=lambda trace: trace.order)
    workers = [trace.worker for trace in traces]
    twice = next((worker for worker in workers if workers.count(worker) > 1), None)
    if twice is not None:
        raise DataFileError(f"every worker must have one trace, got two of {twice}")
    steps = sorted(set.intersection(*(set(trace.times) for trace in traces)))
    times = np.array([[trace.times[step] for trace in traces] for step in steps])
    sizes = given_sizes(batch_sizes, len(traces), "a trace")
    without = [trace.worker for trace in traces if not trace.has_collectives]
    remarks = [
        "Times are profiler steps without the time in which only collectives were running: "
        "waiting for others, and transfers that nothing hid."
    ]
    if without:
        remarks.append(
            f"The trace of {', '.join(without)} has no collectives of gloo or NCCL: its steps "
            "include any waiting, so that all workers look equally slow."
        )
    return Observations(
        workers, np.broadcast_to(sizes.astype(np.float64), (len(steps), len(traces))),
        times.reshape(len(steps), len(traces)), int(sizes.sum()), remarks=tuple(remarks),
    )  # fmt: skip


class _Trace:
    """The steps of one worker, in seconds, waiting excluded."""

    def __init__(self, name: str, text: str) -> None:
        self._name = name
        try:
            data = json.loads(text)
        except (ValueError, RecursionError) as problem:
            raise DataFileError(f"{name}: a trace must be JSON ({problem})") from None
        events = data.get("traceEvents") if isinstance(data, dict) else data
        if not isinstance(events, list):
            raise DataFileError(f"{name}: a trace must have traceEvents, got none")
        rank = self._rank(data)
        self.worker = Path(name).stem if rank is None else f"rank {rank}"
        self.order = (0, rank, "") if rank is not None else (1, 0, name)
        spans = [event for event in events if _is_span(event)]
        collectives = [event for event in spans if _COLLECTIVE.match(event["name"])]
        self.has_collectives = bool(collectives)
        self._exposed = subtract(_union(collectives), _union(_work(spans)))
        self.times = dict(filter(None, map(self._step, spans)))
        if not self.times:
            raise DataFileError(f"{name}: a trace must have ProfilerStep#... events, got none")

    def _step(self, event: Mapping[str, Any]) -> tuple[int, float] | None:
        step = _STEP.match(event["name"])
        if step is None or event.get("cat") == "gpu_user_annotation":
            return None
        start, end = event["ts"], event["ts"] + event["dur"]
        inside = np.clip(self._exposed, start, end)
        own = event["dur"] - float((inside[:, 1] - inside[:, 0]).sum())
        if not own > 0:
            raise DataFileError(f"{self._name}: {event['name']} must take time, got {own} µs")
        return int(step[1]), own * _MICRO

    @staticmethod
    def _rank(data: Any) -> int | None:
        info = data.get("distributedInfo") if isinstance(data, dict) else None
        rank = info.get("rank") if isinstance(info, dict) else None
        return rank if isinstance(rank, int) and not isinstance(rank, bool) else None


def subtract(spans: Floats, others: Floats) -> Floats:
    """Return the parts of sorted, disjoint spans (start, end) outside the other spans.

    >>> subtract(np.array([[0.0, 10.0]]), np.array([[2.0, 3.0], [8.0, 12.0]]))
    array([[0., 2.],
           [3., 8.]])
    """
    left = []
    for start, end in spans.tolist():
        first = int(np.searchsorted(others[:, 1], start))
        for taken, free in others[first:].tolist():
            if taken >= end:
                break
            if taken > start:
                left.append((start, taken))
            start = max(start, free)
        if start < end:
            left.append((start, end))
    return np.array(left).reshape(-1, 2)


def _work(spans: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the work of a worker: kernels on a device, or operations where there is none."""
    kernels = [event for event in spans if event.get("cat") == "kernel"]
    own = kernels or [event for event in spans if event.get("cat") == "cpu_op"]
    return [event for event in own if not re.match(r"nccl|c10d::", event["name"])]


def _union(events: Sequence[Mapping[str, Any]]) -> Floats:
    """Return the union of the events' times, as sorted spans that do not touch."""
    spans = sorted((event["ts"], event["ts"] + event["dur"]) for event in events)
    joined: list[tuple[float, float]] = []
    for start, end in spans:
        if joined and start <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(joined[-1][1], end)
        else:
            joined.append((start, end))
    return np.array(joined, dtype=np.float64).reshape(-1, 2)


def _is_span(event: Any) -> bool:
    return (
        isinstance(event, dict)
        and event.get("ph") == "X"
        and isinstance(event.get("name"), str)
        and all(_is_time(event.get(key)) for key in ("ts", "dur"))
    )


def _is_time(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 1e18
