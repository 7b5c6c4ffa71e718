"""An iteration whose gradients were exchanged."""

from __future__ import annotations

from dataclasses import dataclass

from evenstep.core import Ints, Plan


@dataclass(frozen=True)
class FinishedIteration:
    """An iteration whose gradients were exchanged, and whose reports are on their way."""

    iteration: int
    plan: Plan
    position: tuple[int, ...]
    sizes: Ints
    """x of all workers, really used."""
    start: float
