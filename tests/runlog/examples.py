"""Run logs for the tests."""

from __future__ import annotations

import io
from typing import Any

import numpy as np

from evenstep.runlog import (
    Event,
    Header,
    IterationRow,
    Record,
    RunLog,
    RunLogBuilder,
    RunLogWriter,
)

WORKERS = ("w0", "w1")


def header(workers=WORKERS, **changes) -> Header:
    fields: dict[str, Any] = {"source": "simulated", "job": "G", "total": 32}
    fields |= {"policy": "even", "predictor": "ema", **changes}
    return Header(workers=workers, **fields)


def row(iteration=0, batch_sizes=(8, 24), times=(0.2, 0.3), **changes) -> IterationRow:
    return IterationRow(
        iteration, changes.pop("plan", 0), changes.pop("start", 0.5 * iteration),
        batch_sizes, times, **changes,
    )  # fmt: skip


def full_row(iteration: int, num_workers: int, seed: int = 0) -> IterationRow:
    """Make a row in which every quantity is known."""
    rng = np.random.default_rng((seed, iteration))
    x = rng.integers(1, 200, num_workers)
    t, c, m, d = rng.uniform(0.1, 1.0, (4, num_workers))
    return IterationRow(iteration, iteration // 10, 0.5 * iteration, x, t, t.max() - t, x / t,
                        c, m, d, caps=2 * x)  # fmt: skip


def log_of(*records: Record, **changes) -> RunLog:
    """Return the run log of these records after a header with these changes."""
    builder = RunLogBuilder()
    for record in (header(**changes), *records):
        builder.add(record)
    return builder.build()


def text_of(*records: Record) -> str:
    """Return the text of a run log; the first record is its header."""
    file = io.StringIO()
    head, *rest = records
    assert isinstance(head, Header)
    with RunLogWriter(file, head) as log:
        for record in rest:
            if isinstance(record, Event):
                log.event(record)
            else:
                assert isinstance(record, IterationRow)
                log.iteration(record)
    return file.getvalue()
