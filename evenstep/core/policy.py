"""The interface of policies: settings, and pure functions with the state outside.

A policy is a frozen dataclass of settings. `init` makes the state before the first iteration,
`plan` turns a view and a state into a decision and the next state, and neither changes anything
it is given, which makes replays, checkpoints and tests simple. A policy learns which sizes are in
force from the view, never from its own earlier decisions, so that the caller may delay, hold back
or overrule them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np

from evenstep.core.arrays import Bools, Floats, Ints
from evenstep.core.limits import Limits
from evenstep.core.plan import Decision
from evenstep.core.report import Reports
from evenstep.core.split import split_affine

State = TypeVar("State")


class Policy(Protocol[State]):
    """Turns the view at an iteration boundary into batch sizes."""

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
        """Return the state for other members: their old positions, -1 for newcomers."""
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
    return view.limits.allow(sizes, view.total)


def keep_current(view: View) -> Ints:
    """Return the current sizes, changed as little as possible where limits have tightened."""
    if fits(view.current, view):
        return view.current
    # Each worker wants its current size: its finish time grows with the distance above it.
    wanted = np.maximum(view.current, 1).astype(np.float64)
    return split_affine(view.total, np.zeros(len(wanted)), 1.0 / wanted, view.limits)


def predict_times(view: View, sizes: Ints) -> Floats:
    """Return x / v: the batch processing times by the predicted speeds."""
    return sizes / view.speeds


@dataclass(frozen=True, eq=False)
class View:
    """Arrays with one entry per worker; a policy reads them and changes none."""

    reports: Reports
    """The reports of the workers at this boundary."""
    current: Ints
    """The sizes of the newest plan, which stay in use if the policy changes nothing. They are not
    always the sizes observed, as a plan may take effect some iterations late."""
    speeds: Floats
    """v: the speed predicted for the iteration to be planned, in samples per second."""
    limits: Limits

    @property
    def total(self) -> int:
        return int(self.current.sum())

    @property
    def num_workers(self) -> int:
        return len(self.current)

    @property
    def observed(self) -> Bools:
        return self.reports.observed
