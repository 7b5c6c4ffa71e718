"""Chunks: loading processes prefetch a stream of samples, from which batches of any size are cut.

The order of a stream does not depend on plans, so all prefetched samples are used. While sizes stay
the same, a chunk is exactly one batch. After a change, some batches are joined from two chunks,
until the chunks of the old size are used up.
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
    """The range of the stream that is requested and not yet used."""

    begin: int = 0
    end: int = 0


@dataclass(frozen=True)
class _Piece:
    """Fetched samples: still packed, or one by one."""

    count: int
    packed: Any
    samples: list[Any] | None = None


class Chunks:
    """Returns the next samples of a stream as batches of any size."""

    def __init__(
        self,
        dataset: Any,
        stream: SampleStream,
        packing: Packing,
        size: Callable[[], int],
        num_workers: int,
        loading: Mapping[str, Any],
    ) -> None:
        """`size` returns the batch size to prefetch for."""
        self._samples, self._stream, self._packing = Samples(dataset, None), stream, packing
        self._window = _Window()
        # Made in any case, for the same errors about settings as from a stock loader.
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
        """Return the samples of a range of the stream; fastest if it follows the last one."""
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
        """Return a batch that is fetched in this process, and keep the prefetched samples."""
        return self._packing.collate(self._samples.__getitems__(self._stream.keys(begin, end)))

    def _cut(self, wanted: int) -> list[Any]:
        """Return the first `wanted` fetched samples, and keep the others."""
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
    """Packs samples in the loading process, with their number."""

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
