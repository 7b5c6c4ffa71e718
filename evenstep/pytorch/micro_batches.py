"""Micro-batches: runs a batch that exceeds the memory of its worker in pieces.

The gradients of the pieces accumulate under `no_sync`, and an empty backward pass exchanges them at
the end. So an error in a piece comes before any communication: the same samples are run again in
smaller pieces while the other workers wait, and collective calls stay matched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from evenstep.core import UNLIMITED
from evenstep.errors import InvalidSetting
from evenstep.pytorch.batch_limit import BatchLimit, is_out_of_memory
from evenstep.pytorch.loss_check import LossCheck
from evenstep.pytorch.loss_weights import LossWeights

LossOf = Callable[..., torch.Tensor]
"""From a batch, or a piece of one, to the mean loss of its samples."""


class MicroBatches:
    """Runs forward and backward passes in pieces that fit into memory."""

    def __init__(
        self,
        model: DistributedDataParallel,
        limit: BatchLimit,
        loss_weights: LossWeights,
        may_exceed: bool,
        spoil: Callable[[], None],
        is_mean: bool = True,
        check: LossCheck | None = None,
    ) -> None:
        self._model = model
        self._limit = limit
        self._loss_weights = loss_weights
        self._may_exceed = may_exceed
        """Whether a plan may exceed what this worker can run in one piece."""
        self._spoil = spoil
        """Marks the time of this iteration as unusable."""
        self._check = check
        self._is_mean = is_mean
        """Whether losses are means over the samples of a piece; otherwise their sum counts."""
        self._used: float | None = None

    def run(self, loss_of: LossOf, batch: tuple[Any, ...], samples: int) -> torch.Tensor:
        """Compute the gradients of the mean loss over a batch, and return that loss."""
        samples = samples or _num_samples(batch)
        _check_batch(batch, samples)
        before, counted = _Before(self._model), self._loss_weights.so_far
        while True:
            # The actual size of the pieces, which is within the limit if possible.
            limit = min(self._limit.size, samples)
            size = min(
                limit, max(e - b for b, e in _pieces(samples, limit, self._limit.min_trainable))
            )
            try:
                loss = self._attempt(loss_of, batch, samples, size)
            except Exception as error:
                if not is_out_of_memory(error):
                    before.restore()
                    self._loss_weights.begin_again(counted)
                    raise
                failed = error.with_traceback(None)
            else:
                self._used = self._limit.has_run(size)
                return loss
            # Outside of `except`, where the error would keep the tensors of the failed piece.
            before.restore()
            self._loss_weights.begin_again(counted)
            self._spoil()
            _free_cache()
            try:
                self._limit.has_failed(size)
            except Exception as hopeless:
                raise hopeless from failed

    def readings(self, is_guarded: bool, samples: int) -> tuple[int | None, float | None]:
        """Return the largest batch, if it is limited, and the share of memory in use, if read.

        The gradients of the iteration came from `run`, or from a backward pass of the user on this
        number of samples.
        """
        if is_guarded:
            used, self._used = self._used, None
        elif self._may_exceed:
            raise InvalidSetting(
                "with micro_batches=True gradients must come from balancer.backward(loss_of, "
                "*batch), got them from loss.backward()"
            )
        else:
            used = self._limit.has_run(samples)
        is_limited = self._limit.size < UNLIMITED and not self._may_exceed
        return self._limit.size if is_limited else None, used

    def _attempt(
        self, loss_of: LossOf, batch: tuple[Any, ...], samples: int, size: int
    ) -> torch.Tensor:
        mean = torch.zeros(())
        with self._model.no_sync():
            for begin, end in _pieces(samples, size, self._limit.min_trainable):
                weighed = self._loss_weights.calls
                loss = loss_of(*(_cut(part, samples, begin, end) for part in batch))
                if self._check is not None:
                    self._check.see(loss, end - begin)
                if self._is_mean and self._loss_weights.calls == weighed:
                    # A weighed loss has its weight already.
                    loss = (end - begin) / samples * loss
                loss.backward()
                mean = mean.to(loss) + loss.detach()
        return mean


def exchange_kept(model: DistributedDataParallel) -> None:
    """Exchange accumulated gradients, by a backward pass in which every gradient is zero."""
    trained = [p for p in model.parameters() if p.requires_grad]
    if model.find_unused_parameters:
        # A benched worker has no gradients, but a backward pass needs at least one parameter.
        trained = [p for p in trained if p.grad is not None] or trained[:1]
    nothing = torch.stack([p.reshape(-1)[:1].sum().float() for p in trained]).sum() * 0
    # As in a forward pass, which a benched worker has not had: all workers rebuild buckets once.
    model.reducer._rebuild_buckets()
    model.reducer.prepare_for_forward()
    model.reducer.prepare_for_backward([nothing] if model.find_unused_parameters else [])
    nothing.backward()


class _Before:
    """A copy of gradients and buffers, to restore after an error."""

    def __init__(self, model: DistributedDataParallel) -> None:
        self._gradients = [
            (p, None if p.grad is None else p.grad.clone())
            for p in model.parameters() if p.requires_grad
        ]  # fmt: skip
        self._buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]

    @torch.no_grad()
    def restore(self) -> None:
        for parameter, gradient in self._gradients:
            if gradient is None or parameter.grad is None:
                parameter.grad = gradient
            else:
                parameter.grad.copy_(gradient)
        for buffer, value in self._buffers:
            buffer.copy_(value)


def _pieces(samples: int, size: int, min_trainable: int) -> Iterator[tuple[int, int]]:
    """Yield begin and end of nearly equal pieces, from `min_trainable` to `size` samples each.

    >>> list(_pieces(7, 3, 1))
    [(0, 2), (2, 4), (4, 7)]
    """
    count = min(-(-samples // size), max(1, samples // min_trainable))
    for piece in range(count):
        yield piece * samples // count, (piece + 1) * samples // count


def _num_samples(batch: tuple[Any, ...]) -> int:
    """Return the length of the first tensor of a batch."""
    for part in _leaves(batch):
        if isinstance(part, torch.Tensor) and part.dim() > 0:
            return len(part)
    return 0


def _check_batch(batch: tuple[Any, ...], samples: int) -> None:
    """Raise InvalidSetting if no part of a batch has an entry per sample."""
    if not any(_is_per_sample(part, samples) for part in batch):
        raise InvalidSetting(
            f"a batch must hold a tensor or a list with one entry for each of {samples} samples, "
            f"got {', '.join(type(part).__name__ for part in batch) or 'nothing'} without"
        )


def _is_per_sample(part: Any, samples: int) -> bool:
    if isinstance(part, torch.Tensor):
        return part.dim() > 0 and len(part) == samples
    if isinstance(part, Mapping):
        part = list(part.values())
    if isinstance(part, (list, tuple)):
        return len(part) == samples or any(_is_per_sample(inner, samples) for inner in part)
    return False


def _leaves(part: Any) -> Iterator[Any]:
    if isinstance(part, Mapping):
        part = list(part.values())
    if isinstance(part, (list, tuple)):
        for inner in part:
            yield from _leaves(inner)
    else:
        yield part


def _cut(part: Any, samples: int, begin: int, end: int) -> Any:
    """Return the given samples of a part of a batch; values without samples stay whole.

    A list with as many entries as samples is cut, unless its elements have an entry per sample.

    >>> _cut({"x": torch.arange(4), "name": ["a", "b", "c", "d"], "epoch": 3}, 4, 1, 3)
    {'x': tensor([1, 2]), 'name': ['b', 'c'], 'epoch': 3}
    """
    if isinstance(part, torch.Tensor):
        return part[begin:end] if part.dim() > 0 and len(part) == samples else part
    if isinstance(part, Mapping):
        return {name: _cut(inner, samples, begin, end) for name, inner in part.items()}
    if isinstance(part, (list, tuple)):
        if len(part) == samples and not any(_is_per_sample(inner, samples) for inner in part):
            return part[begin:end]
        inner = [_cut(p, samples, begin, end) for p in part]
        return type(part)(*inner) if hasattr(part, "_fields") else type(part)(inner)
    return part


def _free_cache() -> None:
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
