"""Fellow models: further DDP models that train on the batches of one balancer.

The two halves of a GAN share one loop. One of them has the balancer; the gradients of the other are
weighed by the same batches, and waiting in its exchange is not counted as work of the first.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import GradBucket
from torch.nn.parallel import DistributedDataParallel

from evenstep.errors import InvalidSetting
from evenstep.measure.timer import Timer
from evenstep.pytorch.buffers import has_batch_norm, stop_broadcasting
from evenstep.pytorch.checks import check_hook, check_model
from evenstep.pytorch.comm_hook import register
from evenstep.pytorch.compatibility import check_normalisation
from evenstep.pytorch.exchange import GradientExchange, UserHook
from evenstep.pytorch.inflight import InflightTensors
from evenstep.pytorch.loss_weights import LossWeights


def check_extra_model(
    model: DistributedDataParallel, leader: DistributedDataParallel, minimum: int
) -> None:
    """Raise InvalidSetting unless a model can train on the batches of another one's balancer."""
    check_model(model)
    ours, theirs = (dist.get_process_group_ranks(m.process_group) for m in (leader, model))
    if ours != theirs:
        raise InvalidSetting(
            f"a further model must be on the workers of the first, {ours}, got {theirs}"
        )
    if has_batch_norm(model) and minimum == 1:
        raise InvalidSetting(
            "minimum must be at least 2, as a further model has BatchNorm, got 1: "
            "Balancer(..., minimum=2)"
        )


class ExtraModel:
    """Weighs the gradients of a further model as `leader` does those of the first."""

    def __init__(
        self,
        model: DistributedDataParallel,
        leader: GradientExchange,
        timer: Timer,
        inflight: InflightTensors,
        comm_hook: UserHook | None,
    ) -> None:
        check_hook(comm_hook)
        self.model = model
        self._timer = timer
        self._exchange = GradientExchange(
            model.process_group, LossWeights(1), leader.share, self._ready, inflight, comm_hook
        )
        stop_broadcasting(model)
        register(model, self)

    def hook(self, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Exchange one bucket of the further model."""
        return self._exchange.hook(bucket)

    def _ready(self) -> None:
        """Stop the clock while the backward pass waits for the others."""
        self._timer.pause()
        # DDP waits in a callback of its own at the end of the pass, and asks for that after this;
        # what a callback asks for comes last of all.
        queue = torch.autograd.Variable._execution_engine.queue_callback
        queue(lambda: queue(self._timer.resume))


class ExtraModels:
    """The further models of a balancer; the first one leads."""

    def __init__(
        self,
        first: DistributedDataParallel,
        leader: GradientExchange,
        timer: Timer,
        inflight: InflightTensors,
    ) -> None:
        self._first = first
        self._leader = leader
        self._timer = timer
        self._inflight = inflight
        self._extra_models: list[ExtraModel] = []

    @property
    def models(self) -> list[DistributedDataParallel]:
        return [extra.model for extra in self._extra_models]

    def add(
        self,
        model: DistributedDataParallel,
        comm_hook: UserHook | None,
        minimum: int,
        mode: str,
    ) -> None:
        """Weigh the gradients of a further model, too."""
        check_extra_model(model, self._first, minimum)
        check_normalisation(model, mode)
        self._extra_models.append(
            ExtraModel(model, self._leader, self._timer, self._inflight, comm_hook)
        )

    def require_none(self, what: str) -> None:
        """Raise InvalidSetting, saying what goes with one model, where there are further ones."""
        if self._extra_models:
            raise InvalidSetting(f"{what}, got {len(self._extra_models)} further ones")
