"""Attribution: which batch a forward pass runs on, however many were fetched ahead.

A script may fetch batches before it trains on earlier ones, run several passes on one batch, or
leave a batch out. So a forward pass is attributed to a batch by its inputs:

1. by memory: inputs that are, or are parts of, tensors of a batch that was handed out, or the same
   inputs as in an earlier pass;
2. by order: the oldest batch whose gradients were not computed yet, if all of them, and the batch
   of the last pass, have the same sizes on all workers, so that gradient weights do not depend on
   the answer;
3. by size: the oldest batch with as many samples as the inputs have. Passes of a known number of
   samples tell which dimension of which input has one entry per sample.

Otherwise it raises UnknownBatch. Two workers that come to different answers are found out by the
digests in their reports. Batches come from loaders, or from scripts that make their own.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import numpy as np
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.utils.rnn import PackedSequence

from evenstep.errors import InvalidSetting, UnknownBatch
from evenstep.training.epochs import deal_slice
from evenstep.training.iteration import Iteration, Pass
from evenstep.training.loop import MOST_PASSED_OVER, Loop

Place = tuple[int, int]
"""An input, counted from 0, and one of its dimensions; (-1, 0) is the number of inputs."""
_MOST_GUESSES = 8
"""More than scripts usually fetch ahead."""
Written = tuple[StorageWeakRef, int]
"""Memory, and how often it was written to."""


class HandedOut:
    """A batch that was handed out: its iteration, its number of samples, and its memory."""

    def __init__(self, iteration: Iteration, samples: int, batch: Any) -> None:
        self.iteration = iteration
        self.samples = samples
        """Samples of this worker, also borrowed ones."""
        self.memory = memory_of(batch)
        self.inputs: set[Written] = set()
        """The memory of inputs of earlier passes on this batch."""

    def add_inputs(self, inputs: Any) -> None:
        """Remember the inputs of a pass that have an entry per sample."""
        for tensor in tensors_in(inputs):
            if self.samples in tensor.shape[:2]:
                self.inputs.update(_written(tensor))


class Attribution:
    """Tells the loop on which batch gradients are computed."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._known: deque[HandedOut] = deque()
        """The batches handed out, the newest last."""
        self._per_sample: frozenset[Place] = frozenset()
        """Where inputs have one entry per sample, as far as all passes so far agree."""
        self._guesses: deque[Iteration] = deque(maxlen=_MOST_GUESSES)
        """Iterations found by their order, whose batches may have been others of the same sizes."""
        self._thread = threading.get_ident()
        """The thread that batches are handed out to."""
        self._expected: Iteration | None = None
        """The iteration that the script has said comes next."""

    def hand_out(self, iteration: Iteration, samples: int, batch: Any) -> None:
        """Record a batch of an iteration that the loop has begun."""
        self._known.append(HandedOut(iteration, samples, batch))
        self._thread = threading.get_ident()
        while len(self._known) > MOST_PASSED_OVER + len(self._loop.outstanding):
            self._known.popleft()

    def attribute(self, inputs: Any) -> None:
        """Find the batch that a training forward pass on these inputs belongs to."""
        loop = self._loop
        self._check_thread()
        running = loop.now
        is_expected = self._expected is running and not running.is_retired
        found = running if is_expected else self._find(inputs)
        if found is not running or running.is_retired:
            loop.use(found)
        handed_out = self._of(found)
        if handed_out is not None:
            handed_out.add_inputs(inputs)
            self._learn(inputs, handed_out.samples)

    @property
    def samples(self) -> int | None:
        """The samples of the current batch on this worker, also borrowed ones, if there is one."""
        return self.samples_of(self._loop.now)

    def samples_of(self, iteration: Iteration) -> int | None:
        """Return the samples of a batch on this worker, if it is known."""
        handed_out = self._of(iteration)
        return None if handed_out is None else handed_out.samples

    def expect(self, batch: Any) -> None:
        """Attribute the next passes to this batch, which came from a loader."""
        found = self._by_memory(batch)
        if found is None:
            raise UnknownBatch(
                "balancer.on takes a batch as a loader of the balancer returned it, or a part of "
                "one, got tensors of other memory"
            )
        self.expect_iteration(found)

    def expect_iteration(self, iteration: Iteration) -> None:
        """Attribute the next passes to the batch of this iteration."""
        self._loop.use(iteration)
        self._expected = iteration

    def leave_out(self, inputs: Any) -> None:
        """Leave out the batch of an evaluation, if it came from a loader of the balancer."""
        outstanding = self._loop.outstanding
        if outstanding and not outstanding[-1].of.has_trained:
            found = self._by_memory(inputs)
            if found is not None and found is not self._loop.now:
                self._loop.leave_out(found)

    def _check_thread(self) -> None:
        """Raise InvalidSetting if another thread fetches batches, and sizes may change."""
        if self._loop.settings.mode == "balanced" and self._thread != threading.get_ident():
            raise InvalidSetting(
                "a loader must be iterated over by the thread that trains, as its batch sizes "
                "depend on the iterations before, got another thread: fetch batches in the "
                "training thread, and only transfer them in others"
            )

    def _find(self, inputs: Any) -> Iteration:
        found = self._by_memory(inputs)
        if found is not None:
            return found
        loop = self._loop
        running, waiting = loop.now, [*loop.outstanding, *loop.passed_over]
        if running.is_retired:
            # It may be used once more.
            waiting.append(running)
        newest = [one.iteration for one in list(self._known)[-len(waiting) - 1 :]]
        waiting += [one for one in newest if one in self._guesses and one not in waiting]
        options = [one for one in map(self._of, waiting) if one is not None]
        if not options:
            return running
        first = options[0]
        possible = {size for at, size in _sizes(inputs).items() if at in self._per_sample}
        fitting = [option for option in options if option.samples in possible]
        earlier = [one for one in self._known if one.samples in possible]
        if first.iteration is running and running.is_done and not fitting and earlier:
            # Nothing is waiting: these may be copies of a batch that was trained on before.
            options += earlier
        elif all(_same_sizes(option, first) for option in options[1:]):
            if len(options) > 1 and first.iteration not in self._guesses:
                self._guesses.append(first.iteration)
            return first.iteration
        elif fitting and all(option.samples == fitting[0].samples for option in fitting):
            # Where they differ on other workers only, those come to the right answer, or stop.
            return fitting[0].iteration
        raise UnknownBatch(
            "a forward pass must run on a batch that a loader of the balancer returned, but its "
            "inputs share no memory with any, and their sizes do not tell which: batches of "
            f"{', '.join(str(option.samples) for option in options)} samples, got inputs of shapes "
            f"{', '.join(_shapes(inputs)) or 'none'}; say which batch comes next with "
            "balancer.on(batch)"
        )

    def _learn(self, inputs: Any, samples: int) -> None:
        """Learn where inputs have one entry per sample, from a pass on this many samples."""
        places = {place for place, size in _sizes(inputs).items() if size == samples}
        agreed = self._per_sample & places
        # A pass on a part of a batch, or on something else, tells nothing.
        self._per_sample = agreed or self._per_sample or frozenset(places)

    def _by_memory(self, inputs: Any) -> Iteration | None:
        """Return the batch that the inputs belong to, if there is exactly one."""
        memory, written = memory_of(inputs), set(_written(inputs))
        for found in (
            [one for one in self._known if one.memory & memory],
            [one for one in self._known if one.inputs & written],
        ):
            if len(found) == 1:
                return found[0].iteration
        return None

    def _of(self, iteration: Iteration) -> HandedOut | None:
        return next((one for one in reversed(self._known) if one.iteration is iteration), None)


def _same_sizes(one: HandedOut, other: HandedOut) -> bool:
    """Whether the gradient weights of two batches are the same."""
    ours, theirs = one.iteration.batch, other.iteration.batch
    return np.array_equal(ours.sizes, theirs.sizes) and np.array_equal(ours.counted, theirs.counted)


def _sizes(inputs: Any) -> dict[Place, int]:
    """Return the sizes of all inputs by place, and their number.

    >>> _sizes({"ids": torch.zeros(3, 5), "scale": torch.ones(())})
    {(0, 0): 3, (0, 1): 5, (-1, 0): 2}
    """
    sizes, number = {}, 0
    for number, part in enumerate(_parts(inputs), start=1):
        shape = (part.batch_sizes[0],) if isinstance(part, PackedSequence) else part.shape
        sizes.update({(number - 1, at): int(size) for at, size in enumerate(shape)})
    return sizes | {(-1, 0): number}


def _shapes(inputs: Any) -> list[str]:
    return [str(tuple(tensor.shape)) for tensor in tensors_in(inputs)]


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors in a value: a batch, or the inputs or outputs of a pass."""
    for part in _parts(value):
        if isinstance(part, PackedSequence):
            yield part.data
        elif isinstance(part, torch.Tensor):
            yield part


def memory_of(value: Any) -> set[StorageWeakRef]:
    """Return the memory of all tensors in a value; sparse ones have none of the usual kind."""
    return {
        StorageWeakRef(tensor.untyped_storage())
        for tensor in tensors_in(value)
        if tensor.layout == torch.strided and not tensor.is_nested
    }


def _written(value: Any) -> Iterator[Written]:
    """Yield the memory of all tensors in a value, each with how often it was written to.

    A script may copy one batch after the other into the same memory.
    """
    for tensor in tensors_in(value):
        version = -1 if tensor.is_inference() else tensor._version
        for memory in memory_of(tensor):
            yield memory, version


def _parts(value: Any, depth: int = 4) -> Iterator[Any]:
    """Yield the tensors and packed sequences in a value: a batch, or the inputs of a pass."""
    if isinstance(value, (torch.Tensor, PackedSequence)):
        yield value
    elif depth > 0:
        for inner in _inner(value):
            yield from _parts(inner, depth - 1)


def _inner(value: Any) -> list[Any]:
    if isinstance(value, Mapping):
        return list(value.values())
    if isinstance(value, (list, tuple, set)):
        return list(value)
    # Batches of other libraries, such as graphs, are objects with tensors as attributes.
    return list(getattr(value, "__dict__", {}).values())


Samples = TypeVar("Samples", bound=Any)

_MOST_AHEAD = 256
"""Iterations that may be begun ahead of training, as many as one window may accumulate."""


def begin_iteration(loop: Loop, attribution: Attribution, of: Pass) -> int:
    """Begin an iteration of the planned sizes, and return the samples that this worker makes."""
    _check_ahead(loop)
    iteration = loop.begin(of)
    sizes = iteration.plan.sizes
    loop.has_batch(sizes, (of.num_begun,))
    samples = int(sizes[loop.worker]) or loop.min_trainable
    attribution.hand_out(iteration, samples, None)
    return samples


def deal_samples(loop: Loop, attribution: Attribution, of: Pass, samples: Samples) -> Samples:
    """Begin an iteration with the samples of all workers, and return those of this worker."""
    if not 0 < len(samples) <= loop.total:
        raise InvalidSetting(
            f"deal takes the samples of all workers, from 1 to {loop.total}, got {len(samples)}"
        )
    _check_ahead(loop)
    iteration = loop.begin(of)
    at = 0, of.num_begun
    dealt = deal_slice(
        np.arange(len(samples)), at, iteration.plan.sizes, loop.worker, loop.minimum,
        loop.min_trainable,
    )  # fmt: skip
    mine = _picked(samples, dealt.samples.tolist())
    loop.has_batch(dealt.sizes, at)
    attribution.hand_out(iteration, len(mine), mine)
    return mine


def adopt_batch(
    loop: Loop,
    attribution: Attribution,
    of: Pass,
    samples: int,
    fetch: Callable[[], Any],
    is_next: bool,
) -> Any:
    """Begin an iteration with a batch of a stock loader, of as many samples on all workers.

    `is_next` says that the next passes run on it, or on another one of the same weight.
    """
    iteration = loop.begin(of)
    try:
        batch = fetch()
    except StopIteration:
        loop.has_no_batch()
        raise
    loop.has_batch(np.full(loop.num_workers, samples), (0, of.num_begun))
    attribution.hand_out(iteration, samples, batch)
    if is_next:
        attribution.expect_iteration(iteration)
    return batch


def _picked(samples: Samples, indices: list[int]) -> Samples:
    picked: Any = [samples[i] for i in indices]
    if isinstance(samples, (torch.Tensor, np.ndarray)):
        picked = samples[indices]
    chosen: Samples = picked
    return chosen


def _check_ahead(loop: Loop) -> None:
    if len(loop.outstanding) >= _MOST_AHEAD:
        raise UnknownBatch(
            f"at most {_MOST_AHEAD} iterations may be begun before one of them is trained on, got "
            "one more: make batches for an evaluation without begin_iteration or deal"
        )
