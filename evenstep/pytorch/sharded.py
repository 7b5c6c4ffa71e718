"""The balancer of a model with `fully_shard` (FSDP2).

FSDP2 averages gradients over the workers, so the loss is weighted instead of the gradients. Its
passes wait for other workers in every layer, so batch processing times cannot be measured in them:
batch sizes come from fixed shares, or from a calibration before and between iterations.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader, Dataset

from evenstep.core import Plan
from evenstep.core.gradient_weight import gradient_weight
from evenstep.core.short_form import require_whole
from evenstep.errors import InvalidSetting
from evenstep.measure.timer import Clock
from evenstep.pytorch.buffers import average_buffers
from evenstep.pytorch.calibration import (
    FittedLine,
    UnshardedReplica,
    check_sizes_to_time,
    gather_lines,
    sizes_around,
)
from evenstep.pytorch.checks import MARK
from evenstep.pytorch.loader import BalancedLoader, make_loader
from evenstep.pytorch.loader_options import LoaderOptions
from evenstep.pytorch.loss_weights import as_number
from evenstep.pytorch.sharded_loop import Trail, make_sharded_loop
from evenstep.training.balancer_base import BalancerBase
from evenstep.training.iteration import Iteration
from evenstep.training.settings import SizeOptions

if TYPE_CHECKING:
    from typing_extensions import Unpack


class ShardedBalancer(BalancerBase):
    """Balances a model with `fully_shard` over its workers.

    `total` is X, the samples of all workers in one iteration. Batch sizes are even, or in
    proportion to `shares`, until `calibrate`, which reads `clock`, finds better ones. They are
    multiples of `granularity`; `evenstep.training.settings.SizeOptions` documents the other
    options. The loss of every batch must go through `weigh` before its backward pass.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        total: int,
        *,
        granularity: int = 1,
        clock: Clock = time.perf_counter,
        **options: Unpack[SizeOptions],
    ) -> None:
        self._loop, self._plans, self._collective, mesh = make_sharded_loop(
            model, total, granularity, options
        )
        self._model = model
        self._group = mesh.get_group()
        self._device = torch.device(mesh.device_type)
        self._clock = clock
        self._trail = Trail()
        self._watch = WeighingWatch(model, lambda: self._loop.now)
        self._has_trained = False
        setattr(model, MARK, True)

    @property
    def minimum(self) -> int:
        """The smallest batch size that a plan may give to a worker."""
        return self._loop.minimum

    @property
    def lines(self) -> tuple[FittedLine, ...]:
        """The fitted line of each worker by the last calibration; empty without one."""
        return self._plans.lines

    def loader(
        self, dataset: Dataset[Any] | DataLoader[Any], **options: Unpack[LoaderOptions]
    ) -> BalancedLoader:
        """Return a loader of this worker's batches, in place of a sampler and a DataLoader.

        Takes `shuffle`, `sampler`, `drop_last`, `seed`, `seed_samples`, `collate_fn`,
        `num_workers`, and the other settings of a DataLoader. An existing DataLoader in place of
        the data set provides those that are left out. All workers must call it, also for a loader
        that only one of them uses.
        """
        return make_loader(self._loop, self._collective, self.average_buffers, dataset, options)

    def weigh(self, loss: torch.Tensor) -> torch.Tensor:
        """Return the loss times ``n x_i / X``; it must be a mean over the last batch.

        The mean of the workers' gradients is then the gradient of the joined batch.
        """
        if self._has_trained:
            # A loop that has weighed one loss weighs all of them.
            self._watch.close()
        now = self._loop.now
        if not now.batch.total:
            raise InvalidSetting(
                "a loss must be that of a batch from a loader of this balancer, got one before the "
                "first batch"
            )
        weighted = loss * gradient_weight(now.batch.samples, now.batch.total, self.num_workers)
        if weighted.requires_grad:
            weighted.register_hook(partial(self._on_backward, now))
        return weighted

    def calibrate(
        self,
        make_model: Callable[[], torch.nn.Module],
        loss_of: Callable[[torch.nn.Module, Any], torch.Tensor],
        dataset: Dataset[Any],
        *,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        sizes: Sequence[int] | None = None,
        repeats: int = 5,
    ) -> Plan:
        """Time the passes of each worker, and return the plan with which all finish together.

        `make_model` makes a replica that is not sharded, on the device of this worker: the whole
        model or, if memory is short, a representative part, as only proportions matter.
        `loss_of(model, batch)` and its backward pass are timed at 0.5, 1 and 1.5 times the current
        batch size, or at `sizes`.

        The plan holds from the next iteration on. All workers must call it, at the same time.
        """
        loop = self._loop
        loop.agree({"repeats": repeats})
        self._trail.check(self._collective)
        require_whole("repeats", repeats)
        replica = UnshardedReplica(make_model, loss_of, dataset, collate_fn, self._clock)
        lines = gather_lines(partial(self._measure, replica, sizes, repeats), self._collective)
        planned = self._plans.sizes_by(lines)
        loop.agree({"calibrated sizes": planned.tolist()})
        upcoming = self.iteration if loop.now.is_done else self.iteration + 1
        self._plans.adopt(planned, lines, upcoming)
        return self._plans.plan

    def mean(self, value: float | torch.Tensor) -> float:
        """Return the mean over all samples of the iteration, given the mean over this batch.

        Pass the loss before `weigh`. All workers must call it.
        """
        return self._loop.mean(as_number(value))

    def average_buffers(self) -> None:
        """Average the buffers (BatchNorm's running statistics), weighted by batch sizes.

        For evaluation and checkpoints in mid-epoch; loaders do it at the end of an epoch.
        All workers must call it, and must have trained on the same iterations.
        """
        self._trail.check(self._collective)
        weight = gradient_weight(self.batch_size, self.total)
        average_buffers(self._model, weight, self._group, self._collective.inflight)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the plan of a checkpoint of the same number of workers."""
        super().load_state_dict(state)
        self._trail = Trail()

    def close(self) -> None:
        """Print the summary; this also happens at exit."""
        self._watch.close()
        super().close()

    def _on_backward(self, iteration: Iteration, gradient: torch.Tensor) -> None:
        """Count an iteration in the backward pass of its weighed loss."""
        if not iteration.is_done:
            self._loop.stop(iteration)
            self._has_trained = True
            self._trail.add(iteration)

    def _measure(
        self, replica: UnshardedReplica, sizes: Sequence[int] | None, repeats: int
    ) -> FittedLine:
        min_trainable = self._loop.min_trainable
        if sizes is None:
            current = int(self.newest_plan.sizes[self.worker]) or int(self._plans.even.max())
            sizes = sizes_around(current, min_trainable, self._loop.cap)
        check_sizes_to_time(sizes, min_trainable)
        return replica.measure(sizes, repeats, self._device)


class WeighingWatch:
    """Raises an error for gradients of an iteration whose loss was not weighed.

    Close it after the first iteration, outside of its backward pass: a loop that has weighed one
    loss weighs all of them, and such hooks delay the offloading of gradients.
    """

    def __init__(self, model: torch.nn.Module, now: Callable[[], Iteration]) -> None:
        self._now = now
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(self._on_gradient)
            for parameter in model.parameters() if parameter.requires_grad
        ]  # fmt: skip

    def close(self) -> None:
        """Watch no more."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def _on_gradient(self, parameter: torch.Tensor) -> None:
        now = self._now()
        # An iteration without a position has no batch of a loader.
        if now.position and not now.is_done:
            raise InvalidSetting(
                "the loss must be weighed before its backward pass, as in "
                "balancer.weigh(loss).backward(), since batches differ in size: got gradients of "
                f"iteration {now.number} without"
            )
