"""What balances the four GPUs of `micro`; the paper's LB-BSP is Alg. 2, on GPUs non-blocking."""

from __future__ import annotations

from evenstep.engines.simulation import Setup

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
