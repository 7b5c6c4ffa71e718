"""The header: the first line of a run log, with the kind of run and its settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from evenstep.errors import InvalidSetting
from evenstep.runlog.checks import COUNT, NAMES, SEED, TEXT, check, one_of, short

VERSION = 1
"""The version of the format, docs/run_log.md."""

SOURCES = ("measured", "emulated", "simulated")
"""Real workers; real training on workers slowed down on purpose; virtual time."""


@dataclass(frozen=True)
class Header:
    """The properties of a whole run.

    >>> Header("simulated", "G", ["w0", "w0"], total=128, policy="even", predictor="ema")
    Traceback (most recent call last):
    evenstep.errors.InvalidSetting: workers must be a list of different non-empty strings, \
got ('w0', 'w0')
    """

    source: str
    """`measured`, `emulated` or `simulated`."""
    job: str
    workers: Sequence[str]
    """Names of the workers at the start: the order of the arrays."""
    total: int
    """X: samples of all workers in one iteration."""
    policy: str
    predictor: str
    scheme: str = "bsp"
    seed: int | None = None
    created: str | None = None
    """When the run began, in ISO 8601, given by the caller; None where time is virtual."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Other settings of the run: numbers, strings, lists and dicts of them."""

    def __post_init__(self) -> None:
        if isinstance(self.workers, Sequence) and not isinstance(self.workers, str):
            object.__setattr__(self, "workers", tuple(self.workers))
        check("source", self.source, one_of(SOURCES))
        check("workers", self.workers, NAMES)
        if not self.workers:
            raise InvalidSetting("a run must begin with at least 1 worker, got 0")
        check("total", self.total, COUNT)
        for name in ("job", "policy", "predictor", "scheme"):
            check(name, getattr(self, name), TEXT)
        if self.seed is not None:
            check("seed", self.seed, SEED)
        if self.created is not None:
            check("created", self.created, TEXT)
        if not isinstance(self.settings, Mapping):
            raise InvalidSetting(f"settings must be a dict, got {short(self.settings)}")

    @property
    def num_workers(self) -> int:
        return len(self.workers)
