"""The stream of one worker: reads samples in order, ahead of their use, and continues from a state.

A stream is iterated in this process, or by the processes of a DataLoader, which transfer samples in
chunks. Samples that were read and not used yet are buffered; they are part of the state.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from evenstep.errors import InvalidSetting, StateFileError
from evenstep.pytorch.fetching import Packing
from evenstep.pytorch.loader_options import OF_PROCESSES, LoadingOptions

Samples = list[Any]


def is_stream(source: Any) -> bool:
    """Whether samples come from an iterator and not by index, also through a DataLoader."""
    dataset = source.dataset if isinstance(source, DataLoader) else source
    if isinstance(dataset, IterableDataset):
        return True
    return isinstance(dataset, Iterable) and not hasattr(dataset, "__getitem__")


class StreamSource:
    """Reads the samples of a stream; `origin` is what is iterated, `unpack` what its items hold."""

    def __init__(self, origin: Any, unpack: Callable[[Any], Samples], loading: str) -> None:
        self._origin = origin
        self._unpack = unpack
        self._loading = loading
        """How samples are read, on which their order depends."""
        # An IterableDataset that returns itself as its iterator begins again, by torch's rule.
        self._continues = hasattr(origin, "__next__") and not isinstance(origin, IterableDataset)
        self._iterator: Iterator[Any] | None = None
        self._is_open = False
        self._buffer: deque[Any] = deque()
        self._kept: Samples = []
        self._num_read = 0
        self.is_at_end = False
        """Whether all samples of the pass have been read."""
        self._restored: Mapping[str, Any] | None = None

    @property
    def num_buffered(self) -> int:
        """The number of samples that were read and not taken."""
        return len(self._buffer)

    def open(self, epoch: int) -> None:
        """Begin a pass, unless one is open; after a checkpoint, continue its pass.

        The stream begins again, unless it is itself an iterator, which continues.
        """
        if self._is_open:
            return
        self._is_open = True
        set_epoch = getattr(self._origin, "set_epoch", None)
        if set_epoch is None:
            set_epoch = getattr(getattr(self._origin, "dataset", None), "set_epoch", None)
        if callable(set_epoch):
            set_epoch(epoch)
        restored, self._restored = self._restored, None
        if restored is not None and restored["is_open"]:
            self._resume(restored)
            return
        if restored is not None and restored["stream"] is not None:
            self._origin.load_state_dict(copy.deepcopy(restored["stream"]["dataset"]))
        if self._continues and self._iterator is not None:
            return
        self._buffer.clear()
        self._num_read, self.is_at_end = 0, False
        # First, so that the loading processes of the last pass end.
        self._iterator = None
        self._iterator = iter(self._origin)

    def close(self) -> None:
        """End the pass: the next one begins the stream again."""
        self._is_open = False
        self._restored = None
        if not self._continues:
            self._iterator = None

    def fill(self, count: int) -> None:
        """Read until `count` samples are buffered, or the stream is at its end."""
        while len(self._buffer) < count and not self.is_at_end:
            self._buffer.extend(self._read())

    def take(self, count: int, least: int) -> Samples:
        """Return the next samples; the first `least` are kept to be borrowed later."""
        taken = [self._buffer.popleft() for _ in range(count)]
        self._kept = taken[:least] or self._kept
        return taken

    def give_back(self, samples: Samples) -> None:
        """Return samples to the buffer, in front of all others."""
        self._buffer.extendleft(reversed(samples))

    def borrow(self, count: int) -> Samples:
        """Return samples to run at weight 0: the next ones or, at the end, some that were used."""
        following = list(islice(self._buffer, count))
        return following if len(following) == count or not self._kept else self._kept

    def state_dict(self) -> dict[str, Any]:
        """Return the position in the stream and the buffered samples, for a checkpoint."""
        is_open = self._is_open or self._continues
        if self._restored is not None:
            return dict(self._restored)
        return {
            "is_open": is_open and self._iterator is not None,
            "loading": self._loading,
            "num_read": self._num_read if is_open else 0,
            "is_at_end": self.is_at_end,
            "buffered": list(self._buffer) if is_open else [],
            "borrowed": list(self._kept),
            "stream": self._stream_state(),
        }

    def check_reading(self, is_open: bool, loading: object) -> None:
        """Raise InvalidSetting unless a pass that was read in this way can be continued here."""
        if is_open and loading != self._loading:
            raise InvalidSetting(
                "in mid-epoch, samples must be read as at the checkpoint, as their order depends "
                f"on it: {loading}, got {self._loading}"
            )
        if self._continues and self._num_read and not _has_state(self._origin):
            raise InvalidSetting(
                "a checkpoint must be loaded before an iterator is read, as it cannot go back, got "
                f"one after {self._num_read} samples"
            )

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a checkpoint, which was checked, when the next pass is opened."""
        self.close()
        self._restored = state
        self._kept = list(state["borrowed"])

    def _read(self) -> Samples:
        """Return what the next item holds; none at the end."""
        assert self._iterator is not None, "a stream is read after it is opened"
        try:
            samples = self._unpack(next(self._iterator))
        except StopIteration:
            self.is_at_end = True
            return []
        self._num_read += len(samples)
        return samples

    def _stream_state(self) -> dict[str, Any] | None:
        """Return the state of the stream itself, if it has one, as torchdata's loaders do.

        At the end of a pass only that of a loader is of use: a data set begins again.
        """
        if self._iterator is None and not (self.is_at_end and _is_loader(self._origin)):
            return None
        iterator = None if _is_loader(self._origin) else self._iterator
        of_dataset = None if iterator is self._origin else _state_of(self._origin)
        of_iterator = _state_of(iterator)
        if of_dataset is None and of_iterator is None:
            return None
        return {"dataset": of_dataset, "iterator": of_iterator}

    def _resume(self, state: Mapping[str, Any]) -> None:
        """Continue a pass; a stream without a state of its own is read again up to there."""
        self._buffer = deque(state["buffered"])
        self._num_read, self.is_at_end = state["num_read"], state["is_at_end"]
        self._iterator = None
        own = state["stream"] or {"dataset": None, "iterator": None}
        # With the state of its end, a loader begins again at the next pass; a data set may not.
        if own["dataset"] is not None and (_is_loader(self._origin) or not self.is_at_end):
            self._origin.load_state_dict(copy.deepcopy(own["dataset"]))
        if self.is_at_end:
            self._iterator = iter(())
            return
        self._iterator = iter(self._origin)
        if own["iterator"] is not None:
            loadable: Any = self._iterator
            loadable.load_state_dict(copy.deepcopy(own["iterator"]))
        if state["stream"] is None:
            self._skip(state["num_read"])

    def _skip(self, count: int) -> None:
        """Read the samples that were read before the checkpoint, and drop them."""
        self._num_read = 0
        while self._num_read < count and not self.is_at_end:
            self._read()
        if self._num_read != count:
            raise StateFileError(
                f"the stream must have the samples that were read before the checkpoint, {count}, "
                f"got {self._num_read}"
            )


def make_source(
    stream: Any, packing: Packing, chunk: int, options: Mapping[str, Any]
) -> StreamSource:
    """Return the source of a stream, or of an existing DataLoader over one.

    A DataLoader with `batch_size=None` yields samples, and is used as it is; another one is made
    again, to transfer chunks of samples. Arguments override its options.
    """
    loading: dict[str, Any] = dict(options)
    if not isinstance(stream, DataLoader):
        num_workers = loading.pop("num_workers", 0)
        if num_workers == 0:
            if loading:
                # For the same errors about settings as from a stock loader.
                DataLoader(_AsDataset(()), **loading)
            return StreamSource(stream, _single, "in this process")
        dataset = stream if isinstance(stream, IterableDataset) else _AsDataset(stream)
        return _chunked(DataLoader, dataset, packing, chunk, {"num_workers": num_workers} | loading)
    if stream.batch_size is None:
        if loading:
            raise InvalidSetting(
                "the settings of a DataLoader with batch_size=None must be given to it, as it is "
                f"used as it is, got {', '.join(loading)}"
            )
        return StreamSource(stream, _single, f"by {_processes(stream.num_workers)}")
    # A loader with a state is rebuilt as what it is: its state is that of its processes.
    kind = type(stream) if _has_state(stream) else DataLoader
    if kind is DataLoader and stream.num_workers == 0 and not loading.get("num_workers"):
        return StreamSource(stream.dataset, _single, "in this process")
    if hasattr(stream, "snapshot_every_n_steps"):
        loading.setdefault("snapshot_every_n_steps", stream.snapshot_every_n_steps)
    existing = _options_of(stream, loading.get("num_workers", stream.num_workers))
    return _chunked(kind, stream.dataset, packing, chunk, existing | loading)


def _chunked(
    kind: Callable[..., Any], dataset: Any, packing: Packing, chunk: int, loading: dict[str, Any]
) -> StreamSource:
    chunks = _Chunks(packing)
    loader = kind(dataset, batch_size=chunk, collate_fn=chunks.pack, **loading)
    how = f"by {_processes(loader.num_workers)} in chunks of {chunk}"
    return StreamSource(loader, chunks.unpack, how)


def _options_of(loader: DataLoader[Any], num_workers: int) -> dict[str, Any]:
    """Return the options of an existing DataLoader that one with `num_workers` takes over."""
    names = LoadingOptions.__optional_keys__ - {"collate_fn", "pin_memory", "pin_memory_device"}
    if 0 in (loader.num_workers, num_workers):
        names -= set(OF_PROCESSES)
    return {name: getattr(loader, name) for name in sorted(names) if hasattr(loader, name)}


class _Chunks:
    """Packs samples into chunks in a loading process, and unpacks them."""

    def __init__(self, packing: Packing) -> None:
        self._packing = packing

    def pack(self, samples: Samples) -> tuple[int, Any]:
        return len(samples), self._packing.pack(samples)

    def unpack(self, chunk: tuple[int, Any]) -> Samples:
        count, packed = chunk
        return self._packing.pick(packed, count)


class _AsDataset(IterableDataset[Any]):
    """Makes any iterable a data set that a DataLoader iterates over."""

    def __init__(self, stream: Iterable[Any]) -> None:
        self._stream = stream

    def __iter__(self) -> Iterator[Any]:
        return iter(self._stream)


def _single(sample: Any) -> Samples:
    return [sample]


def _processes(num_workers: int) -> str:
    return f"{num_workers} loading processes" if num_workers else "a loader in this process"


def _is_loader(stream: Any) -> bool:
    return isinstance(stream, DataLoader)


def _has_state(stream: Any) -> bool:
    return hasattr(stream, "state_dict") and hasattr(stream, "load_state_dict")


def _state_of(stream: Any) -> Any:
    """Return a copy of the state of a stream, or None if it has no state."""
    return copy.deepcopy(stream.state_dict()) if _has_state(stream) else None
