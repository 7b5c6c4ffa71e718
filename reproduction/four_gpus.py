"""The four GPUs of `micro`: their policies, the paper's batch sizes, and the plots of a run.

The paper's LB-BSP is Alg. 2, on GPUs non-blocking.
"""

from __future__ import annotations

from collections.abc import Sequence

from evenstep.core import Floats, Ints
from evenstep.simulator.engine.simulation import Setup
from reproduction.result import Curve, Plot

PAPERS, OURS = "Alg. 2, to the letter, non-blocking", "equal_finish"
BLOCKING = "Alg. 2, to the letter"
_LITERAL = "stepwise:literal=true"
POLICIES = {
    BLOCKING: Setup(_LITERAL),
    PAPERS: Setup(_LITERAL, delay=1),
    "stepwise (our reading of Alg. 2)": Setup("stepwise"),
    OURS: Setup("equal_finish"),
}
PAPERS_SIZES = [89, 21, 12, 6]
"""Batch sizes of V100, M60, K80 and K520 before the change."""


def iteration_plots(
    title: str, kind: str, workers: Sequence[str], sizes: Ints, times: Floats, change_at: int
) -> list[Plot]:
    """Return plots of x and of t over iterations; the M60's line is degraded at one of them."""
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
