"""Extra models: further DDP models that train on the batches of one balancer.

The two models of a GAN share one loop. One of them has the balancer; the gradients of the other are
weighed by the same batches, and the wait in its exchange does not count as work.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import GradBucket
from torch.nn.parallel import DistributedDataParallel

from evenstep.errors import InvalidSetting
from evenstep.measure.timer import Timer
from evenstep.pytorch.checks import check_hook, check_model
from evenstep.pytorch.collective import InflightTensors
from evenstep.pytorch.comm_hook import register
from evenstep.pytorch.compatibility import check_normalisation, has_batch_norm, stop_broadcasting
from evenstep.pytorch.exchange import GradientExchange, UserHook
from evenstep.pytorch.loss_weights import LossWeights


def check_extra_model(
    model: DistributedDataParallel, first: DistributedDataParallel, minimum: int
) -> None:
    """Raise InvalidSetting unless a model can train on the batches of another one's balancer."""
    check_model(model)
    ours, theirs = (dist.get_process_group_ranks(m.process_group) for m in (first, model))
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
    """Weighs the gradients of a further model by the batches of the first."""

    def __init__(
        self,
        model: DistributedDataParallel,
        exchange: GradientExchange,
        timer: Timer,
        inflight: InflightTensors,
        comm_hook: UserHook | None,
    ) -> None:
        check_hook(comm_hook)
        self.model = model
        self._timer = timer
        self._exchange = GradientExchange(
            model.process_group, LossWeights(1), exchange.weight, exchange.window, self._ready,
            inflight, exchange.finite, exchange.explained, comm_hook,
        )  # fmt: skip
        stop_broadcasting(model)
        register(model, self)

    def hook(self, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Exchange one bucket of the further model."""
        return self._exchange.hook(bucket)

    def _ready(self) -> None:
        """Pause the timer while the backward pass waits for the others."""
        self._timer.pause()
        # DDP waits in a callback at the end of the pass, which it queues after this one. A
        # callback that is queued by a callback runs after all of them.
        queue = torch.autograd.Variable._execution_engine.queue_callback
        queue(lambda: queue(self._timer.resume))


class ExtraModels:
    """The further models of a balancer."""

    def __init__(
        self,
        first: DistributedDataParallel,
        exchange: GradientExchange,
        timer: Timer,
        inflight: InflightTensors,
    ) -> None:
        self._first = first
        self._first_exchange = exchange
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
        """Weigh the gradients of a further model."""
        check_extra_model(model, self._first, minimum)
        check_normalisation(model, mode)
        self._extra_models.append(
            ExtraModel(model, self._first_exchange, self._timer, self._inflight, comm_hook)
        )

    def require_none(self, what: str) -> None:
        """Raise InvalidSetting, for a feature that takes one model, if there are further ones."""
        if self._extra_models:
            raise InvalidSetting(f"{what}, got {len(self._extra_models)} further ones")
