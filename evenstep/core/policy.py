"""The interface of policies: settings, and two pure functions with the state outside.

A policy is a frozen dataclass of settings. `init` makes the state before the first iteration, and
`plan` turns a view and a state into a decision and the next state. Neither changes its arguments,
so that replays, checkpoints and tests are simple. A policy reads the sizes in force from the view,
never from its own decisions, so that its caller may delay, hold back or overrule them.
"""

from __future__ import annotations

from typing import Protocol, TypeVar

import numpy as np

from evenstep.core.arrays import Floats, Ints
from evenstep.core.limits import Limits
from evenstep.core.plan import Decision
from evenstep.core.split import split_affine
from evenstep.core.view import View

State = TypeVar("State")


class Policy(Protocol[State]):
    """Decides the batch sizes at an iteration boundary."""

    @property
    def uses_speeds(self) -> bool:
        """Whether it needs a predictor."""
        ...

    def init(self, num_workers: int) -> State:
        """Return the state before anything was observed."""
        ...

    def plan(self, view: View, state: State) -> tuple[Decision, State]:
        """Return the sizes of the iteration to be planned, and the next state."""
        ...

    def remap(self, state: State, keep: Ints) -> State:
        """Return the state for other members; `keep` has their old positions, -1 for newcomers."""
        ...


def even_sizes(total: int, limits: Limits) -> Ints:
    """Return the sizes of plain BSP: as equal as the limits and the integers allow.

    >>> even_sizes(11, Limits.of(3))
    array([4, 4, 3])
    """
    n = limits.num_workers
    return split_affine(total, np.zeros(n), np.ones(n), limits)


def fits(sizes: Ints, view: View) -> bool:
    """Whether the sizes respect the limits of the view."""
    lo, hi = view.limits.bounds(view.total)
    g = view.limits.granularity
    return bool(np.all((sizes >= lo) & (sizes <= hi) & (sizes % g == 0)))


def keep_current(view: View) -> Ints:
    """Return the current sizes, changed as little as possible if limits have tightened."""
    if fits(view.current, view):
        return view.current
    # Each worker prefers its current size: finish times grow with the distance above it.
    wanted = np.maximum(view.current, 1).astype(np.float64)
    return split_affine(view.total, np.zeros(len(wanted)), 1.0 / wanted, view.limits)


def predict_times(view: View, sizes: Ints) -> Floats:
    """Return x / v: the batch processing times at the predicted speeds."""
    return sizes / view.speeds
