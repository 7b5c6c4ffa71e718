"""The values of a batch: reduced over workers whose batches have unequal sizes.

`self.log(..., sync_dist=True)` and `self.all_gather` end in methods of Lightning's strategy. These
take their place while a Trainer fits. A mean over a batch is weighed by the samples of each worker,
as a worker has few of them and another one many. The means of an epoch need nothing: Lightning
weighs them by batch sizes. The wait for the other workers does not count as work.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
import torch.distributed as dist

from evenstep.errors import InvalidSetting
from evenstep.pytorch import Balancer


class BatchValues:
    """Reduces the values of a batch, in place of the strategy's methods.

    One for all fits of a Trainer, which keeps the method that a value was reduced by, and refuses
    another one for the same value.
    """

    def __init__(self) -> None:
        self._balancer: Balancer | None = None
        self._has_warned = False

    def attach(self, trainer: Any, pl_module: Any) -> None:
        """Remember the methods to replace."""
        self._trainer = trainer
        strategy = trainer.strategy
        self._stock_reduce, self._stock_all_gather = strategy.reduce, strategy.all_gather
        self._stock_log = pl_module.log

    def begin(self, balancer: Balancer) -> None:
        """Take what is reduced from now on as values of a batch."""
        self._balancer = balancer

    def end(self) -> None:
        """Take what is reduced from now on as values of an epoch."""
        self._balancer = None

    def reduce(self, tensor: Any, group: Any = None, reduce_op: Any = "mean") -> Any:
        """Return the mean over all samples of the iteration, or another reduction as it was."""
        balancer = self._current
        if balancer is None or not torch.is_tensor(tensor):
            return self._stock_reduce(tensor, group, reduce_op)
        if reduce_op not in ("mean", "avg"):
            with balancer.away():
                return self._stock_reduce(tensor, group, reduce_op)
        if not _is_of_all(group) or tensor.numel() > 1:
            raise InvalidSetting(
                "a mean over a batch must be one number of all workers, as it is weighed by their "
                f"samples, got {tensor.numel()} numbers of the group {group!r}: leave "
                "sync_dist_group out"
            )
        return torch.full_like(tensor, balancer.mean(tensor))

    def all_gather(self, tensor: torch.Tensor, group: Any = None, sync_grads: bool = False) -> Any:
        """Return the tensors of all workers, which must have the same shape."""
        balancer = self._current
        if balancer is None:
            return self._stock_all_gather(tensor, group, sync_grads)
        with balancer.away():
            if tensor.dim() > 0 and _is_of_all(group):
                _require_same_shape(tensor, balancer.num_workers)
            return self._stock_all_gather(tensor, group, sync_grads)

    def log(self, name: str, *values: Any, **settings: Any) -> None:
        """Log a value; warns if it comes with the batch size of a stock Trainer."""
        balancer, batch_size = self._current, settings.get("batch_size")
        if balancer is not None and batch_size is not None and not self._has_warned:
            samples, even = balancer.batch_size, balancer.total // balancer.num_workers
            if batch_size == even != samples:
                self._has_warned = True
                warnings.warn(
                    f"self.log({name!r}, ..., batch_size={batch_size}) is called for a batch of "
                    f"{samples} samples: give the number of samples of the batch, or leave it out, "
                    "as the mean over an epoch is weighed by it",
                    stacklevel=2,
                )
        self._stock_log(name, *values, **settings)

    @property
    def _current(self) -> Balancer | None:
        """The balancer of the current batch; None outside, as in a validation in mid-epoch."""
        return self._balancer if self._trainer.training else None


def _is_of_all(group: Any) -> bool:
    """Whether a process group is that of all workers."""
    return group is None or group is dist.group.WORLD


def _require_same_shape(tensor: torch.Tensor, num_workers: int) -> None:
    """Raise InvalidSetting, on all workers, if their tensors have other shapes."""
    shapes: list[Any] = [None] * num_workers
    dist.all_gather_object(shapes, tuple(tensor.shape))
    if len(set(shapes)) > 1:
        raise InvalidSetting(
            "tensors of a training batch must have the same shape on all workers for all_gather, "
            f"got {', '.join(map(str, shapes))}: the workers' batches have unequal sizes, and a "
            "loss that compares the samples of all of them cannot be balanced"
        )
