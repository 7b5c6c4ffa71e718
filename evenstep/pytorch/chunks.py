"""Chunks: loading processes fetch a stream ahead, and batches of any size are cut from it.

The order of a stream does not depend on plans, so that all that was fetched is used. As long as
sizes stay, a chunk is just a batch, and goes out as it came; after a change some batches are put
together from two chunks, until those that were fetched by the old size are used up.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch.utils.data import DataLoader

from evenstep.partitions.rules.traversals import SampleStream
from evenstep.pytorch.fetching import Key, Packing, Samples


@dataclass
class _Window:
    """From where to where in the stream samples are asked for, and not yet used."""

    begin: int = 0
    end: int = 0


@dataclass(frozen=True)
class _Piece:
    """Samples that have come: still packed, or one by one."""

    count: int
    packed: Any
    samples: list[Any] | None = None


class Chunks:
    """Hands out the next so many samples of a stream as a batch."""

    def __init__(
        self,
        dataset: Any,
        stream: SampleStream,
        packing: Packing,
        size: Callable[[], int],
        num_workers: int,
        loading: Mapping[str, Any],
    ) -> None:
        """`size` is asked for the size of batches to fetch for."""
        self._samples, self._stream, self._packing = Samples(dataset, None), stream, packing
        self._window = _Window()
        # Made in any case, for the same complaints about settings as from a stock loader.
        self._loading: DataLoader[Any] = DataLoader(
            self._samples,
            batch_sampler=_Ahead(stream, self._window, size),
            collate_fn=_Pack(packing),
            num_workers=num_workers,
            **loading,
        )
        self._fetches = num_workers > 0
        self._packs: Iterator[Any] | None = None
        self._pieces: deque[_Piece] = deque()

    def take(self, begin: int, end: int) -> Any:
        """Return the batch of samples of the stream; at best, those that follow the last ones."""
        if not self._fetches:
            return self.borrow(begin, end)
        if self._packs is None or begin != self._window.begin:
            self._window.begin = self._window.end = begin
            self._pieces.clear()
            self._packs = iter(self._loading)
        self._window.begin = end
        wanted = end - begin
        while sum(piece.count for piece in self._pieces) < wanted:
            packed, count = next(self._packs)
            self._pieces.append(_Piece(count, packed))
        first = self._pieces[0]
        if first.count == wanted and first.samples is None:
            return self._packing.take_all(self._pieces.popleft().packed)
        return self._packing.collate(self._cut(wanted))

    def borrow(self, begin: int, end: int) -> Any:
        """Return a batch that is fetched here and now, and leaves what was fetched ahead alone."""
        return self._packing.collate(self._samples.__getitems__(self._stream.keys(begin, end)))

    def _cut(self, wanted: int) -> list[Any]:
        """Return the first so many samples of what has come, and keep the others."""
        taken: list[Any] = []
        while len(taken) < wanted:
            piece = self._pieces.popleft()
            samples = piece.samples
            if samples is None:
                samples = self._packing.pick(piece.packed, piece.count)
            missing = wanted - len(taken)
            taken += samples[:missing]
            if samples[missing:]:
                rest = samples[missing:]
                self._pieces.appendleft(_Piece(len(rest), None, rest))
        return taken


@dataclass(frozen=True)
class _Pack:
    """Packs samples in the loading process, and says how many they are."""

    packing: Packing

    def __call__(self, samples: list[Any]) -> tuple[Any, int]:
        return self.packing.pack(samples), len(samples)


class _Ahead:
    """The batch sampler of the loading processes: chunks that end where batches will."""

    def __init__(self, stream: SampleStream, window: _Window, size: Callable[[], int]) -> None:
        self._stream, self._window, self._size = stream, window, size

    def __iter__(self) -> Iterator[list[Key]]:
        window = self._window
        while True:
            begin, size = window.end, max(1, self._size())
            window.end += size - (begin - window.begin) % size
            yield self._stream.keys(begin, window.end)
