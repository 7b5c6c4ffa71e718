"""The balancer of a model with `fully_shard` (FSDP2).

FSDP2 averages gradients over the workers, so the loss is weighted instead of the gradients. Its
passes wait for other workers in every layer, so batch processing times cannot be read off them:
batch sizes come from fixed shares, or from a calibration before and between iterations.
"""

from __future__ import annotations

import atexit
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.utils.data import Dataset

from evenstep.core.arrays import Ints, as_floats, as_ints
from evenstep.core.limits import UNLIMITED, Limits
from evenstep.core.plan import Plan
from evenstep.core.policy import even_sizes
from evenstep.core.settings import require_whole
from evenstep.core.split import split_proportional
from evenstep.errors import InvalidSetting, StateFileError
from evenstep.measure.timer import Clock
from evenstep.policies import Static
from evenstep.pytorch.buffers import average_buffers, has_batch_norm
from evenstep.pytorch.calibration import (
    Line,
    Replica,
    check_sizes_to_time,
    gather_lines,
    saved_by,
    sizes_around,
    split_by_lines,
)
from evenstep.pytorch.checks import MARK, check_sharded_model, side_group
from evenstep.pytorch.exchange import Share
from evenstep.pytorch.group_meeting import GroupMeeting
from evenstep.pytorch.handed import Handed
from evenstep.pytorch.iteration import Iteration
from evenstep.pytorch.loader import BalancedLoader, make_loader
from evenstep.pytorch.sharded_model import mesh_of
from evenstep.pytorch.trail import Trail
from evenstep.pytorch.weighing import as_number
from evenstep.pytorch.weighing_watch import WeighingWatch
from evenstep.training.meeting import mean_over_workers, require_agreement
from evenstep.training.sizes import check_sizes


class ShardedBalancer:
    """Balances a model with `fully_shard` over its workers.

    `total` is X, the samples of all workers in one iteration. Batch sizes are even, or in
    proportion to `shares`, until `calibrate`, by its `clock`, finds better ones. The loss of every
    batch must go through `weigh` before its backward pass.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        total: int,
        *,
        shares: Sequence[float] | None = None,
        minimum: int | None = None,
        maximum: int | None = None,
        granularity: int = 1,
        summary: bool = True,
        clock: Clock = time.perf_counter,
    ) -> None:
        check_sharded_model(model)
        mesh = mesh_of(model)
        self._model = model
        self._group = mesh.get_group()
        self._device = torch.device(mesh.device_type)
        self.worker = dist.get_rank(self._group)
        self.num_workers = dist.get_world_size(self._group)
        self.total = total
        self.fewest = 2 if has_batch_norm(model) else 1
        """The smallest batch that the model can be trained on."""
        self.minimum = self.fewest if minimum is None else minimum
        self._maximum = maximum
        self._clock = clock
        self.side_group = side_group(self._group)
        self._handed = Handed()
        self.meeting = GroupMeeting(self.side_group, self._handed)
        # Before anything else is checked: who stops here alone leaves the others waiting.
        require_agreement(
            {
                "total": total, "shares": None if shares is None else tuple(shares),
                "minimum": self.minimum, "maximum": maximum, "granularity": granularity,
            },
            self.meeting,
        )  # fmt: skip
        check_sizes(total, self.minimum, self.num_workers)
        self._limits = _limits(self.num_workers, self.minimum, maximum, granularity)
        self._even = even_sizes(total, self._limits)
        self._plan = Plan(0, 0, self._first_sizes(shares), reason="start")
        self.lines: tuple[Line, ...] = ()
        """Of each worker, what the last calibration found; empty without one."""
        self.iteration = 0
        """k: iterations whose weighed loss went backward."""
        self._trail = Trail()
        self._nothing = Share(np.zeros(self.num_workers, dtype=np.int64), self.worker)
        self._now = self._idle()
        self._watch = WeighingWatch(model, lambda: self._now)
        self._prints = summary and self.worker == 0
        setattr(model, MARK, True)
        atexit.register(self.close)

    @property
    def plan(self) -> Plan:
        """The plan of the current iteration: batch sizes of all workers."""
        return self._now.plan

    @property
    def newest_plan(self) -> Plan:
        """The plan of the next iteration."""
        return self._plan

    @property
    def batch_size(self) -> int:
        """This worker's planned batch size."""
        return int(self.plan.sizes[self.worker])

    def loader(self, dataset: Dataset[Any], **settings: Any) -> BalancedLoader:
        """Return this worker's batches of a data set, in place of a sampler and a DataLoader.

        Takes `shuffle`, `sampler`, `drop_last`, `seed`, `seed_samples`, `collate_fn`,
        `num_workers`, and the other settings of a DataLoader. All workers must call it, also for
        a loader that only one of them will use.
        """
        return make_loader(self, dataset, settings)

    def weigh(self, loss: torch.Tensor) -> torch.Tensor:
        """Return the loss times ``n x_i / X``; it must be a mean over the batch handed out last.

        The mean of the workers' gradients is then the gradient of the joined batch.
        """
        now = self._now
        if not now.batch.total:
            raise InvalidSetting(
                "a loss must be that of a batch which a loader of this balancer has handed out, "
                "got one before the first batch"
            )
        weighted = loss * (self.num_workers * now.batch.samples / now.batch.total)
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
        """Time every worker's own passes, and return the plan by which they finish together.

        `make_model` makes a replica of this worker's own, not sharded, on its device: the whole
        model, or where memory is short a part that stands for it, as only proportions matter.
        `loss_of(model, batch)` is what is timed, with its backward pass, at a half, one and one
        and a half times the current batch size, or at `sizes`.

        The plan holds from the next iteration on. All workers must call it, at the same time.
        """
        require_agreement({"repeats": repeats}, self.meeting)
        self._trail.check(self.meeting)
        require_whole("repeats", repeats)
        replica = Replica(make_model, loss_of, dataset, collate_fn, self._clock)
        lines = gather_lines(partial(self._measure, replica, sizes, repeats), self.meeting)
        planned = split_by_lines(self.total, lines, self._limits)
        require_agreement({"calibrated sizes": planned.tolist()}, self.meeting)
        self.lines = lines
        self._adopt(planned, "calibration")
        return self._plan

    def mean(self, value: float | torch.Tensor) -> float:
        """Return the mean over all samples of the iteration of what is a mean over this batch.

        Of the loss as it was before `weigh`. All workers must call it.
        """
        return mean_over_workers(as_number(value), self._now.batch.samples, self.meeting)

    def average_buffers(self) -> None:
        """Average the buffers (BatchNorm's running statistics), weighted by batch sizes.

        For evaluation and checkpoints in mid-epoch; a loader does it at the end of an epoch.
        All workers must call it, and must have trained on the same iterations.
        """
        self._trail.check(self.meeting)
        average_buffers(self._model, self.batch_size / self.total, self._group, self._handed)

    def state_dict(self) -> dict[str, Any]:
        """Return the plan and the lines, for a checkpoint; what one worker returns fits all."""
        return {
            "iteration": self.iteration,
            "number": self._plan.number,
            "sizes": self._plan.sizes.tolist(),
            "lines": [[line.offset, line.slope] for line in self.lines],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up the plan of a checkpoint of the same number of workers."""
        sizes = as_ints(state["sizes"])
        if len(sizes) != self.num_workers or np.any(sizes < 0) or sizes.sum() != self.total:
            raise StateFileError(
                f"saved sizes must be one per worker ({self.num_workers}), >= 0, and add up to "
                f"{self.total}, got {sizes.tolist()}"
            )
        if not self._limits.allow(sizes, self.total):
            sizes = split_proportional(self.total, np.maximum(sizes, 1e-3), self._limits)
        self.iteration = int(state["iteration"])
        self.lines = tuple(Line(offset, slope) for offset, slope in state["lines"])
        self._plan = Plan(int(state["number"]), self.iteration, sizes, reason="restored")
        self._now = self._idle()
        self._trail = Trail()

    def summary(self) -> str:
        """Return in one line which sizes are used, and what they gain by the calibration."""
        sizes = "/".join(map(str, self._plan.sizes.tolist()))
        if not self.lines:
            return f"evenstep: batch sizes {sizes}, not calibrated"
        saved = saved_by(self._plan.sizes, self._even, self.lines)
        return (
            f"evenstep: batch sizes {sizes}; by the calibration, forward and backward passes take "
            f"about {saved:.0%} less time than with even sizes"
        )

    def close(self) -> None:
        """Print the summary; done at exit by itself."""
        atexit.unregister(self.close)
        self._watch.close()
        if self._prints:
            self._prints = False
            print(self.summary(), file=sys.stderr)

    def begin(self) -> Iteration:
        """Begin an iteration under the newest plan."""
        if self._now.is_done and self._now.place:
            self._watch.close()
        self._now = Iteration(self.iteration, self._plan, 0.0, self._nothing, self._nothing)
        return self._now

    def has_batch(self, sizes: Ints, place: tuple[int, ...], size: float | None = None) -> None:
        """Take note of the batches of this iteration, and of where in the data they are."""
        self._now.batch, self._now.place = Share(sizes, self.worker), place

    def interrupted(self) -> Iteration:
        """Return the iteration that the iterations of another loader now come in the middle of."""
        return self._now

    def go_on(self, iteration: Iteration, last: Iteration) -> None:
        """Go on with an interrupted iteration after the `last` one of another loader."""
        if self._now is last and not iteration.is_done and iteration.number == self.iteration:
            self._now = iteration

    def _on_backward(self, iteration: Iteration, gradient: torch.Tensor) -> None:
        """Count an iteration when its weighed loss goes backward."""
        if not iteration.is_done:
            iteration.is_done = True
            self.iteration += 1
            self._trail.add(iteration)

    def _idle(self) -> Iteration:
        """Return what stands for no iteration."""
        return Iteration(
            self.iteration, self._plan, 0.0, self._nothing, self._nothing, is_done=True
        )

    def _first_sizes(self, shares: Sequence[float] | None) -> Ints:
        if shares is None:
            return self._even
        static = Static(tuple(float(share) for share in shares))
        static.init(self.num_workers)
        return split_proportional(self.total, as_floats(static.shares), self._limits)

    def _measure(self, replica: Replica, sizes: Sequence[int] | None, repeats: int) -> Line:
        if sizes is None:
            current = int(self._plan.sizes[self.worker]) or int(self._even.max())
            sizes = sizes_around(current, self.fewest, self._maximum)
        check_sizes_to_time(sizes, self.fewest)
        return replica.measure(sizes, repeats, self._device)

    def _adopt(self, sizes: Ints, reason: str) -> None:
        """Use these sizes from the next iteration on; a plan that keeps them keeps its number."""
        if np.array_equal(sizes, self._plan.sizes):
            return
        upcoming = self.iteration if self._now.is_done else self.iteration + 1
        self._plan = Plan(self._plan.number + 1, upcoming, sizes, reason=reason)


def _limits(num_workers: int, minimum: int, maximum: int | None, granularity: int) -> Limits:
    require_whole("granularity", granularity)
    if maximum is None:
        return Limits.of(num_workers, minimum, UNLIMITED, granularity)
    require_whole("maximum", maximum)
    return Limits.of(num_workers, minimum, maximum, granularity)
