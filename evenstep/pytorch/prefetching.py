"""Prefetching: loading processes fetch what the plan of today would need tomorrow."""

from __future__ import annotations

import itertools
import weakref
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader

from evenstep.core.arrays import Ints
from evenstep.pytorch.fetching import Key

if TYPE_CHECKING:
    from evenstep.pytorch.loader import BalancedLoader


@dataclass(frozen=True, eq=False)
class UnderWay:
    """An epoch that has not come to its end."""

    epoch: int
    order: Ints
    position: int
    """Where it was begun."""
    iteration: int
    """Of the whole training."""

    def has_trained(self, iteration: int) -> bool:
        """Whether something was trained on before this iteration of the whole training."""
        return iteration > self.iteration


class Ahead:
    """The batch sampler of the loading processes; remembers what it had them fetch."""

    def __init__(self, loader: BalancedLoader) -> None:
        # Not in a circle: a loader that nobody uses any more must end its processes at once.
        self._loader = weakref.ref(loader)
        self.guesses: deque[list[Key]] = deque()
        """Of the pass that was begun last."""

    def __iter__(self) -> Iterator[list[Key]]:
        self.guesses = deque()
        loader = self._loader()
        assert loader is not None
        assert loader.under_way is not None
        return self._noted(self.guesses, loader.under_way)

    def __len__(self) -> int:
        loader = self._loader()
        return 0 if loader is None else len(loader)

    def _noted(self, guesses: deque[list[Key]], under_way: UnderWay) -> Iterator[list[Key]]:
        for position in itertools.count(under_way.position):
            keys = self._guess(under_way, position)
            if keys is None:
                return
            guesses.append(keys)
            yield keys

    def _guess(self, under_way: UnderWay, position: int) -> list[Key] | None:
        loader = self._loader()
        return None if loader is None else loader.guess(under_way, position)


class Fetched:
    """What loading processes fetch in one pass, with the keys that they were asked for."""

    def __init__(self, loading: DataLoader[Any], ahead: Ahead) -> None:
        self._packs = iter(loading)
        self._guesses = ahead.guesses

    def take(self) -> tuple[list[Key], Any]:
        """Return the keys of the next iteration as they were guessed, and their samples."""
        packed = next(self._packs)
        return self._guesses.popleft(), packed
