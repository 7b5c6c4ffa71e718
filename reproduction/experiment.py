"""Experiments: the part of the paper that each re-makes, and the settings of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from evenstep.errors import EvenstepError
from reproduction.data import NAMES, NO_DATA, QUICK_NAMES, Data
from reproduction.parts import NO_PARTS, Parts
from reproduction.result import KINDS, Result

T = TypeVar("T")

Progress = Callable[[float, str], None]
"""Called with the share of an experiment that is done, and the name of the next part."""


class Skipped(EvenstepError):
    """An experiment cannot be made here; the message says why."""


@dataclass(frozen=True)
class Settings:
    """Settings of a run."""

    quick: bool = False
    """Whether to take seconds only: small bundled data, few seeds."""
    data: Data = NO_DATA
    parts: Parts = NO_PARTS
    """The parts that an interrupted run had finished already."""
    shared: Parts = NO_PARTS
    """Trainings that several experiments show."""

    def choose(self, quick: T, full: T) -> T:
        """Return the first in a quick run, otherwise the second."""
        return quick if self.quick else full

    def taken(self, names: Iterable[str]) -> list[str]:
        """Return which of these data sets are given, and taken; a quick run takes few."""
        found = self.data.found
        return [name for name in names if name in found and (not self.quick or name in QUICK_NAMES)]


@dataclass(frozen=True)
class Experiment:
    """One experiment of the evaluation, or one beyond it."""

    name: str
    title: str
    of_paper: str
    """Which figure or table."""
    kind: str
    """The kind of most of its figures, one of `KINDS`."""
    run: Callable[[Settings, Progress], Result]
    data: tuple[str, ...] = ()
    """Which data sets it takes where they are given, of `NAMES`."""
    shares: bool = False
    """Whether it shows trainings that others show, too (`Settings.shared`)."""
    also: tuple[str, ...] = ()
    """The kinds of its other figures, where it can have them, of `KINDS`."""

    def __post_init__(self) -> None:
        assert set(self.kinds) <= set(KINDS), self.kinds
        assert set(self.data) <= set(NAMES), self.data

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds that its figures can have."""
        return (self.kind, *self.also)


def steps(work: Sequence[T], progress: Progress) -> Iterator[T]:
    """Iterate over the work, and report progress.

    >>> reported = []
    >>> list(steps(["a", "b"], lambda share, text: reported.append((share, text))))
    ['a', 'b']
    >>> reported
    [(0.0, 'a'), (0.5, 'b'), (1.0, '')]
    """
    for i, item in enumerate(work):
        progress(i / len(work), words(item))
        yield item
    progress(1.0, "")


def part_of(progress: Progress, number: int, count: int) -> Progress:
    """Return a progress function for one part of the work, of `count` equal ones.

    >>> part_of(lambda share, text: print(share, text), 1, 4)(0.5, "half of the second")
    0.375 half of the second
    """
    return lambda share, text: progress((number + share) / count, text)


def words(item: object) -> str:
    """Return the name of a piece of work.

    >>> words(("P", "narx", 0))
    'P, narx, 0'
    """
    return ", ".join(map(words, item)) if isinstance(item, tuple) else str(item)
