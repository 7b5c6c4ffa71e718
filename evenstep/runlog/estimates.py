"""Estimates: what other batch sizes would have taken in the iterations of a run."""

from __future__ import annotations

from dataclasses import dataclass

from evenstep.core.arrays import Floats


@dataclass(frozen=True, eq=False)
class Estimates:
    """Iteration times, in seconds, one per iteration of a run log; NaN where nobody can tell."""

    plain: Floats
    """With even sizes."""
    optimum: Floats
    """With the best sizes."""
