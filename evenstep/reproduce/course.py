"""The course of a run: plots of batch sizes and batch processing times over iterations."""

from __future__ import annotations

from collections.abc import Sequence

from evenstep.core.arrays import Floats, Ints
from evenstep.reproduce.result import Curve, Plot


def course_plots(
    title: str, kind: str, workers: Sequence[str], sizes: Ints, times: Floats, change_at: int
) -> list[Plot]:
    """Return a plot of x and one of t; the M60's line is degraded at an iteration."""
    at = list(range(len(sizes)))
    return [
        Plot(
            title.format(what),
            kind,
            "iteration",
            unit,
            [Curve(worker, at, values[:, i].tolist()) for i, worker in enumerate(workers)],
            marks=[(float(change_at), "M60 has a quarter of its bandwidth")],
        )
        for what, unit, values in (
            ("batch size", "samples", sizes),
            ("batch processing time", "seconds", times),
        )
    ]
