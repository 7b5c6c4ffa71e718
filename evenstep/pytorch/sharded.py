"""The balancer of a model with `fully_shard` (FSDP2).

FSDP2 averages gradients over the workers, so the loss is weighted instead of the gradients. Its
passes wait for other workers in every layer, so batch processing times cannot be measured in them:
batch sizes come from fixed shares, or from a calibration before and between iterations.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, overload

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from evenstep.core import Plan, gradient_weight, require_whole
from evenstep.errors import InvalidSetting
from evenstep.measure.timer import Clock
from evenstep.pytorch.attribution import Attribution
from evenstep.pytorch.calibration import (
    FittedLine,
    UnshardedReplica,
    check_sizes_to_time,
    gather_lines,
    sizes_around,
)
from evenstep.pytorch.checks import MARK
from evenstep.pytorch.compatibility import average_buffers
from evenstep.pytorch.loader import BalancedLoader, make_loader
from evenstep.pytorch.loader_options import LoaderOptions
from evenstep.pytorch.loss_check import LossCheck
from evenstep.pytorch.loss_weights import as_number
from evenstep.pytorch.sharded_loop import Trail, make_sharded_loop
from evenstep.pytorch.stream_loader import StreamLoader
from evenstep.training.balancer_base import BalancerBase
from evenstep.training.iteration import Iteration
from evenstep.training.settings import SizeOptions

if TYPE_CHECKING:
    from typing_extensions import Unpack


class ShardedBalancer(BalancerBase):
    """Balances a model with `fully_shard` over its workers.

    `total` is X, the samples of all workers in one iteration. Batch sizes are even, or in
    proportion to `shares`, until `calibrate`, which reads `clock`, finds better ones. They are
    multiples of `granularity`. `loss` is that of `Balancer`, and
    `evenstep.training.settings.SizeOptions` documents the other options. The loss of every batch
    must go through `weigh` before its backward pass.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        total: int,
        *,
        loss: str | None = None,
        granularity: int = 1,
        clock: Clock = time.perf_counter,
        **options: Unpack[SizeOptions],
    ) -> None:
        self._loop, self._plans, self._collective, mesh = make_sharded_loop(
            model, total, loss, granularity, options
        )
        self._attribution = Attribution(self._loop)
        self._model = model
        model.register_forward_pre_hook(torch.compiler.disable(self._on_pass), with_kwargs=True)
        self._group = mesh.get_group()
        self._device = torch.device(mesh.device_type)
        self._clock = clock
        self._trail = Trail()
        self._watch = WeighingWatch(model, lambda: self._loop.now)
        self._has_trained = False
        self._loss = loss or "mean"
        self._check = LossCheck()
        if loss is not None:
            self._check.close()
        setattr(model, MARK, True)

    @property
    def total(self) -> int:
        """X: samples of all workers in one iteration; all workers must set it together."""
        return self._loop.total

    @total.setter
    def total(self, total: int) -> None:
        # The gradient exchange of a sharded model carries no digests of plans.
        self._loop.agree({"total": total})
        self._loop.change_total(total)

    @property
    def minimum(self) -> int:
        """The smallest batch size that a plan may give to a worker."""
        return self._loop.minimum

    @property
    def lines(self) -> tuple[FittedLine, ...]:
        """The fitted line of each worker by the last calibration; empty without one."""
        return self._plans.lines

    @overload
    def loader(  # type: ignore[overload-overlap]
        self, dataset: IterableDataset[Any], **options: Unpack[LoaderOptions]
    ) -> StreamLoader: ...
    @overload
    def loader(  # type: ignore[overload-overlap]
        self, dataset: Dataset[Any] | DataLoader[Any], **options: Unpack[LoaderOptions]
    ) -> BalancedLoader: ...
    @overload
    def loader(self, dataset: Iterable[Any], **options: Unpack[LoaderOptions]) -> StreamLoader: ...
    def loader(self, dataset: Any, **options: Unpack[LoaderOptions]) -> Any:
        """Return a loader of this worker's batches, in place of a sampler and a DataLoader.

        Takes `shuffle`, `sampler`, `drop_last`, `pad`, `seed`, `seed_samples`, `collate_fn`,
        `num_workers`, and the other settings of a DataLoader. An existing DataLoader in place of
        the data set provides those that are left out. All workers must call it, also for a loader
        that only one of them uses.

        A stream (an IterableDataset, any iterable without an index, or a DataLoader over one) is
        read by each worker for itself; see `StreamLoader`. It takes `stop`, `ahead`, `collate_fn`,
        `num_workers`, and the other settings of a DataLoader.
        """
        return make_loader(
            self._loop, self._attribution, self._collective, self.average_buffers, dataset, options
        )

    def weigh(self, loss: torch.Tensor) -> torch.Tensor:
        """Return the loss times ``n x_i / X``, if it is a mean over the batch.

        The mean of the workers' gradients is then the gradient of the joined batch. A sum, or a
        loss that is divided by a count over all workers, is returned as it is.
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
        self._check.see(loss, self._attribution.samples or 0)
        weight = gradient_weight(now.batch.samples, now.batch.total, self.num_workers)
        weighted = loss * (weight if self._loss == "mean" else float(not now.is_benched))
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
        weight = gradient_weight(self.batch_size, self.plan.total)
        with self._loop.explained():
            average_buffers(self._model, weight, self._group, self._collective.inflight)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the plan of a checkpoint of the same number of workers."""
        super().load_state_dict(state)
        self._trail = Trail()

    def close(self) -> None:
        """Print the summary; this also happens at exit."""
        self._watch.close()
        super().close()

    def _on_pass(self, model: torch.nn.Module, inputs: Any, named: Any) -> None:
        """Attribute a forward pass to a batch."""
        if torch.is_grad_enabled():
            self._attribution.attribute((inputs, named))
        elif not model.training:
            self._attribution.leave_out((inputs, named))

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
