"""The loader of streams: batches of the planned size, each worker's from a stream of its own.

A stream has no length that others could know. So every worker reads ahead, and says in each
gradient exchange how many samples it has and whether its stream is at its end. A batch is taken
only from samples that all workers know of: so the sizes of an iteration, and with them the gradient
weights, are the same on all workers, also where a stream ends. Where too little is known, as after
a large change of the plan, a small exchange at the beginning of the iteration asks for it.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader
from torch.utils.data._utils.pin_memory import pin_memory as pin

from evenstep.core import SEAL, UNLIMITED, Bools, Floats, Ints, SavedState, require_whole, sealed
from evenstep.core.dealing import sizes_left
from evenstep.errors import InvalidSetting
from evenstep.pytorch.attribution import Attribution
from evenstep.pytorch.fetching import Packing
from evenstep.pytorch.loader_options import LoaderOptions, check_loading
from evenstep.pytorch.stream_source import Samples, StreamSource, make_source
from evenstep.training.collective import Collective
from evenstep.training.epochs import check_position
from evenstep.training.iteration import Iteration, Pass
from evenstep.training.loop import Loop

STOPS = ("all", "first")

_log = logging.getLogger(__name__)

_RANGE = 2**22
"""Counts travel modulo this: with the mark of an end they are within what a float32 keeps."""


class Supply:
    """The samples that each worker is known to have: read from its stream, and not used yet.

    Samples are counted over all passes, so that an outdated number is recognised as such. As the
    user of the extra column, it serves all streams of a balancer, one after the other.
    """

    def __init__(self, collective: Collective) -> None:
        self._collective = collective
        self._worker = collective.worker
        self._read = np.zeros(collective.num_workers, dtype=np.int64)
        self._used = np.zeros(collective.num_workers, dtype=np.int64)
        self._is_final: Bools = np.zeros(collective.num_workers, dtype=bool)
        self._mine = 0, False
        """The number of samples that this worker has read, and whether these are all."""
        self.caps = np.full(collective.num_workers, UNLIMITED)
        """The largest batch that each worker can run."""
        self.user: object = None
        """The mark of the stream that was opened last."""

    @property
    def known(self) -> Ints:
        """The number of samples that each worker has at least."""
        return self._read - self._used

    @property
    def left(self) -> Ints:
        """The number of samples that each worker has left; UNLIMITED if it may have more."""
        return np.where(self._is_final, self.known, UNLIMITED)

    @property
    def is_dry(self) -> Bools:
        """Which workers have no samples left."""
        dry: Bools = self.left == 0
        return dry

    def open(self, user: object, num_buffered: int, is_final: bool, cap: int | None) -> None:
        """Begin to count the samples of another stream or pass; all workers must call it."""
        self.user = user
        # One further, so that what was said before is outdated.
        first = self._mine[0] + 1
        self._exchange(first, num_buffered, is_final, cap)

    def ask(self, num_buffered: int, is_final: bool, cap: int | None) -> None:
        """Exchange the numbers of all workers; all of them must call it."""
        self._exchange(int(self._used[self._worker]), num_buffered, is_final, cap)

    def use(self, sizes: Ints) -> None:
        """Count the samples of an iteration as used."""
        self._used = self._used + sizes

    def has(self, num_buffered: int, is_final: bool) -> None:
        """Store what this worker says in the next gradient exchange."""
        self._mine = int(self._used[self._worker]) + num_buffered, is_final

    def say(self) -> float:
        """Return what this worker has read, and whether these are all, as one number."""
        num_read, is_final = self._mine
        return float(2 * (num_read % _RANGE) + is_final)

    def hear(self, numbers: Floats) -> None:
        """Take the numbers of all workers."""
        said = numbers.astype(np.int64)
        ahead = (said // 2 - self._read + _RANGE // 2) % _RANGE - _RANGE // 2
        is_new = ahead >= 0
        self._read = np.where(is_new, self._read + ahead, self._read)
        self._is_final = self._is_final | (is_new & (said % 2 == 1))

    def close(self) -> None:
        """Do nothing: there is no background work."""

    def _exchange(self, first: int, num_buffered: int, is_final: bool, cap: int | None) -> None:
        largest = UNLIMITED if cap is None else cap
        row = np.array([first, num_buffered, is_final, largest], dtype=np.float64)
        used, buffered, final, caps = self._collective.everybody(row).astype(np.int64).T
        self._used, self._read, self._is_final, self.caps = used, used + buffered, final > 0, caps
        self.has(num_buffered, is_final)


class StreamLoader:
    """Iterates over batches of this worker's own stream; made by `Balancer.loader`."""

    _is_accelerate_prepared = True
    """Makes `accelerator.prepare_data_loader` of Hugging Face return the loader as it is."""

    def __init__(
        self,
        loop: Loop,
        attribution: Attribution,
        ended: Callable[[], None],
        stream: Any,
        source: StreamSource,
        packing: Packing,
        *,
        stop: str = "all",
        ahead: int = 2,
        pin_memory: bool = False,
    ) -> None:
        self.dataset = stream
        self.left: tuple[int, ...] = ()
        """The samples of each worker that the last epoch left unused, with stop="first"; streams
        that were not at their end may have more."""
        self._loop, self._ended, self._source, self._packing = loop, ended, source, packing
        self._attribution = attribution
        self._stop, self._ahead = stop, ahead
        self._pin_memory = pin_memory and torch.cuda.is_available()
        self._supply = _supply_of(loop)
        # Not the loader itself: the supply would keep it, and its loading processes.
        self._mark = object()
        self._epoch = self._position = 0
        self._passed: Pass | None = None
        """The running pass."""
        self._begun_at = 0
        """The position at which it began."""
        self._handed_out: deque[tuple[Iteration, Samples]] = deque()
        """The batches of the pass that may be outstanding, with the own samples of this worker."""
        self._has_said = self._is_exhausted = False

    @property
    def batch_size(self) -> int:
        """This worker's current batch size."""
        return self._loop.batch_size

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch; by default, each epoch follows the last one.

        Streams with a `set_epoch` of their own are called with it when the pass begins.
        """
        self._settle()
        if epoch != self._epoch:
            self._source.close()
            self._epoch, self._position = epoch, 0

    def __iter__(self) -> Iterator[Any]:
        self._settle()
        loop, source = self._loop, self._source
        source.open(self._epoch)
        self._open()
        passed = Pass()
        self._passed, self._begun_at = passed, self._position
        try:
            while not self._is_over():
                iteration = loop.begin(passed)
                sizes = self._deal(iteration.plan.sizes)
                samples = self._next(sizes)
                batch = self._packing.collate(samples)
                batch = pin(batch) if self._pin_memory else batch
                loop.has_batch(sizes, (self._epoch, self._position, *sizes.tolist()))
                self._attribution.hand_out(iteration, len(samples), batch)
                self._lent()
                self._handed_out.append((iteration, samples if sizes[loop.worker] else []))
                # Before yield, as a checkpoint in the body of the loop comes after this batch.
                self._position += 1
                yield batch
        finally:
            loop.leave(passed)
        if self._stop == "first":
            self._say_left()
        self._is_exhausted = True
        loop.after(passed, self._ended)
        # Batches that were fetched ahead are still part of the epoch.
        loop.after(passed, partial(self._end, passed))
        if not self._lent():
            self._end(passed)

    def state_dict(self) -> dict[str, Any]:
        """Return the position of this worker in its stream, for a checkpoint of this worker."""
        lent, state = self._lent(), self._source.state_dict()
        buffered = [sample for _, samples in lent for sample in samples] + list(state["buffered"])
        return sealed(
            {
                "epoch": self._epoch,
                "position": self._position - len(lent),
                "workers": self._loop.num_workers,
                "worker": self._loop.worker,
                **state,
                "buffered": buffered,
            }
        )

    def check_state(self, state: Mapping[str, Any]) -> tuple[int, int]:
        """Return epoch and position of a checkpoint; raise an error if it cannot be continued."""
        loop = self._loop
        saved = SavedState(
            "a stream", state, "epoch", "position", "workers", "worker", "is_open", "loading",
            "num_read", "is_at_end", "buffered", "borrowed", "stream",
        )  # fmt: skip
        position = saved.whole("position", most=UNLIMITED)
        saved.whole("worker", most=saved.whole("workers", least=1, most=UNLIMITED) - 1)
        check_position(state, {"workers": loop.num_workers, "worker": loop.worker})
        is_open, num_buffered = saved.flag("is_open"), len(saved.items("buffered"))
        self._source.check_reading(is_open, saved["loading"])
        saved.whole("num_read", least=num_buffered)
        saved.flag("is_at_end")
        saved.items("borrowed")
        for name in ("position", "num_read"):
            if not is_open and saved[name]:
                raise saved.wrong(name, "0 before an epoch is begun")
        own = saved["stream"]
        if not (own is None or (isinstance(own, Mapping) and {*own} == {"dataset", "iterator"})):
            raise saved.wrong("stream", "None, or the states of a data set and its iterator")
        return saved.whole("epoch", most=UNLIMITED), position

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from this worker's own checkpoint, with the same number of workers.

        A state that is refused changes nothing.
        """
        epoch, position = self.check_state(state)
        self._source.load_state_dict({name: state[name] for name in state if name != SEAL})
        self._epoch, self._position = epoch, position
        self._passed, self._is_exhausted = None, False
        self._handed_out.clear()

    def _open(self) -> None:
        """Begin to count; raise InvalidSetting, on all workers, if one of them has no samples."""
        loop, supply = self._loop, self._supply
        self._fill(int(loop.newest_plan.sizes[loop.worker]))
        supply.open(self._mark, self._source.num_buffered, self._source.is_at_end, loop.cap)
        short = np.flatnonzero(supply.left < loop.min_trainable)
        if self._position == 0 and len(short) and not supply.is_dry.all():
            worker = int(short[0])
            raise InvalidSetting(
                f"every worker's stream must have at least {loop.min_trainable} samples, as all "
                f"workers take part in every iteration, got {supply.left[worker]} on worker "
                f"{worker}: give every worker a part of the stream"
            )

    def _is_over(self) -> bool:
        """Whether the epoch ends; all workers know it from the samples that they know of."""
        supply, source = self._supply, self._source
        if supply.user is not self._mark:
            # Another stream was read in between, by all workers.
            supply.open(self._mark, source.num_buffered, source.is_at_end, self._loop.cap)
        dry = supply.is_dry
        return bool(dry.any() if self._stop == "first" else dry.all())

    def _deal(self, planned: Ints) -> Ints:
        """Return the sizes of all workers, of which all workers know that there are samples."""
        loop, supply, source = self._loop, self._supply, self._source
        while True:
            least = loop.min_trainable
            sizes = sizes_left(planned, supply.left, supply.caps, least)
            # What is left must be enough for one more batch, or be known to be all.
            if np.all((supply.left < UNLIMITED) | (supply.known >= sizes + least)):
                return sizes
            self._fill(int(sizes[loop.worker]))
            with loop.away():
                supply.ask(source.num_buffered, source.is_at_end, loop.cap)

    def _next(self, sizes: Ints) -> Samples:
        """Return the next samples, and read ahead; for a size of 0 return borrowed samples."""
        source, least = self._source, self._loop.min_trainable
        size = int(sizes[self._loop.worker])
        samples = source.take(size, least) if size else source.borrow(least)
        source.fill(self._ahead * size + least)
        self._supply.use(sizes)
        self._supply.has(source.num_buffered, source.is_at_end)
        return samples

    def _fill(self, size: int) -> None:
        """Read what a batch of this size takes, and what is read ahead after it."""
        self._source.fill((1 + self._ahead) * size + self._loop.min_trainable)

    def _say_left(self) -> None:
        """Report how many samples the first end of a stream has left unused."""
        supply, loop = self._supply, self._loop
        self.left = tuple(supply.known.tolist())
        names = [loop.workers[i] for i in np.flatnonzero(supply.is_dry)]
        parts = [
            f"{'' if final < UNLIMITED else 'at least '}{count} of {name}"
            for name, count, final in zip(loop.workers, self.left, supply.left, strict=True)
            if count
        ]  # fmt: skip
        text = (
            f"epoch {self._epoch} ended with the stream of {', '.join(names)}; samples left "
            f"unused: {', '.join(parts) or 'none'}"
        )
        loop.note(loop.iteration, text)
        if loop.worker == 0 and not self._has_said:
            self._has_said = True
            _log.warning("%s (later epochs: in the run log, and in loader.left)", text)

    def _lent(self) -> list[tuple[Iteration, Samples]]:
        """Return the batches that were handed out but not trained on, and forget the others."""
        outstanding = self._loop.outstanding
        while self._handed_out and self._handed_out[0][0] not in outstanding:
            self._handed_out.popleft()
        return [lent for lent in self._handed_out if lent[0] in outstanding]

    def _end(self, passed: Pass) -> None:
        """Move on to the next epoch, unless a later pass has begun."""
        if self._passed is passed:
            self._source.close()
            self._handed_out.clear()
            self._passed, self._is_exhausted = None, False
            self._epoch, self._position = self._epoch + 1, 0

    def _settle(self) -> None:
        """End an epoch that was left early.

        If nothing was trained on, as in a look at one batch, its samples are handed back.
        """
        passed = self._passed
        if passed is None:
            return
        lent = [sample for _, samples in self._lent() for sample in samples]
        if not self._is_exhausted:
            self._loop.forget(passed)
        if passed.has_trained or self._is_exhausted:
            self._end(passed)
            return
        self._source.give_back(lent)
        self._handed_out.clear()
        self._passed, self._position = None, self._begun_at


def make_stream_loader(
    loop: Loop,
    attribution: Attribution,
    ended: Callable[[], None],
    stream: Any,
    options: LoaderOptions,
) -> StreamLoader:
    """Return the loader of a stream, or of a DataLoader over one; all workers must call it."""
    given: dict[str, Any] = dict(options)
    stop, ahead = given.pop("stop", "all"), given.pop("ahead", 2)
    batch_size = stream.batch_size if isinstance(stream, DataLoader) else None
    # Before all other checks: a worker that raised alone would leave the others waiting.
    loop.agree({"stop": stop, "ahead": ahead, "batch size of the DataLoader": batch_size})
    if stop not in STOPS:
        raise InvalidSetting(f"stop must be one of {', '.join(STOPS)}, got {stop!r}")
    require_whole("ahead", ahead, least=0)
    check_loading(given)
    _check_order(given)
    pin_memory = given.pop("pin_memory", getattr(stream, "pin_memory", False) is True)
    collate_fn = given.pop("collate_fn", None)
    if isinstance(stream, DataLoader):
        _check_existing(stream, loop)
        if collate_fn is None and stream.batch_size is not None:
            collate_fn = stream.collate_fn
    packing = Packing(collate_fn)
    chunk = batch_size or max(1, loop.total // loop.num_workers)
    source = make_source(stream, packing, chunk, given)
    return StreamLoader(
        loop, attribution, ended, stream, source, packing, stop=stop, ahead=ahead,
        pin_memory=pin_memory,
    )  # fmt: skip


def _supply_of(loop: Loop) -> Supply:
    """Return the supply that uses the extra column of a balancer, or one of its own."""
    column = loop.column
    if column is None:
        return Supply(loop.collective)
    if column.user is None:
        column.take(Supply(loop.collective))
    return column.user if isinstance(column.user, Supply) else Supply(loop.collective)


def _check_order(options: dict[str, Any]) -> None:
    """Raise InvalidSetting for options that choose samples, and remove them otherwise."""
    for name in ("shuffle", "sampler", "drop_last", "seed", "seed_samples", "counts"):
        value = options.pop(name, None)
        if value is not None and value is not False:
            raise InvalidSetting(
                f"{name} must be left out for a stream, whose samples are used in its own order to "
                f"its end, got {value!r}"
            )


def _check_existing(loader: DataLoader[Any], loop: Loop) -> None:
    """Raise InvalidSetting unless a DataLoader over a stream fits the balancer."""
    if loader.batch_size is not None and loader.batch_size * loop.num_workers != loop.total:
        raise InvalidSetting(
            f"the batch size of a DataLoader must be the balancer's total, {loop.total}, divided "
            f"by the number of workers, {loop.num_workers}, got {loader.batch_size}"
        )
    if loader.drop_last:
        raise InvalidSetting(
            "drop_last of a DataLoader over a stream must be False, as the last samples are "
            "trained on in smaller batches, got True"
        )
