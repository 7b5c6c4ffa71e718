"""The gradients of a DDP model: computed in pieces if needed, weighed, accumulated, exchanged.

Hooks on the model observe its passes. The last bucket of gradients ends the iteration of the loop,
and carries the report of this worker.

Backward passes under `no_sync` keep their gradients, and DDP calls no communication hook for them.
So a forward pass under `no_sync` registers a hook for the first gradient of the backward pass that
may follow, and that hook registers one for its end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch.autograd.graph import register_multi_grad_hook
from torch.nn.parallel import DistributedDataParallel
from torch.utils.hooks import RemovableHandle

from evenstep.core.gradient_weight import gradient_weight
from evenstep.errors import InvalidSetting
from evenstep.pytorch.batch_limit import BatchLimit, peak_memory
from evenstep.pytorch.buffers import average_buffers, has_batch_norm, stop_broadcasting
from evenstep.pytorch.comm_hook import register
from evenstep.pytorch.compatibility import mark_batches, without_compiler
from evenstep.pytorch.exchange import Arrived, GradientExchange, Read, Rows, UserHook
from evenstep.pytorch.extra_models import ExtraModels
from evenstep.pytorch.finite import FiniteCheck
from evenstep.pytorch.inflight import InflightTensors
from evenstep.pytorch.loss_weights import LossWeights, as_count
from evenstep.pytorch.micro_batches import LossOf, MicroBatches, exchange_kept
from evenstep.training.iteration import FinishedIteration, Iteration
from evenstep.training.loop import Loop
from evenstep.training.report_rows import Row


class Gradients:
    """Makes the gradients of a model, and of extra models, those of the joined batch."""

    def __init__(
        self,
        model: DistributedDataParallel,
        loop: Loop,
        inflight: InflightTensors,
        comm_hook: UserHook | None,
    ) -> None:
        self._model = model
        self._loop = loop
        self._inflight = inflight
        device = next(model.parameters()).device
        self._limit = BatchLimit(loop.cap, loop.min_trainable, peak_memory(device))
        self._loss_weights = LossWeights(loop.total)
        self._micro_batches = MicroBatches(
            model, self._limit, self._loss_weights, loop.settings.micro_batches, loop.timer.spoil
        )
        self._finite = FiniteCheck(loop.worker, loop.workers, loop.note)
        self._exchange = GradientExchange(
            model.process_group, self._loss_weights, lambda: loop.share, self._ready, inflight,
            self._finite, comm_hook, loop.row_width,
        )  # fmt: skip
        self._accumulation = AccumulationWatch(model, lambda: loop.now, self._on_accumulated)
        self._extra_models = ExtraModels(model, self._exchange, loop.timer, inflight)
        stop_broadcasting(model)
        model.module.register_forward_pre_hook(torch.compiler.disable(self._on_forward))
        if loop.settings.mode == "balanced":
            mark_batches(model, lambda: loop.samples)
        register(model, self._exchange)

    def backward(self, loss_of: LossOf, batch: tuple[Any, ...]) -> torch.Tensor:
        """Run forward and backward passes of a batch, in pieces if memory is short."""
        self._extra_models.require_none(
            "balancer.backward goes with one model, as the passes of a further one would be "
            "exchanged piece by piece"
        )
        if self._model.static_graph:
            raise InvalidSetting(
                "balancer.backward keeps gradients under no_sync, which DDP refuses in its first "
                "pass with static_graph=True: leave that out"
            )
        keeps = not self._model.require_backward_grad_sync
        now = self._loop.now
        now.is_guarded = True
        if now.is_benched:
            # Its samples are borrowed, and have weight 0.
            self._loss_weights.skip()
            loss = torch.zeros(())
        else:
            with self._accumulation.muted():
                loss = self._micro_batches.run(loss_of, batch, now.batch.samples)
        if keeps:
            self._on_accumulated()
        else:
            exchange_kept(self._model)
        return loss

    def weigh(self, loss: torch.Tensor, count: float | torch.Tensor) -> torch.Tensor:
        """Return the loss to call backward on, if it is a mean over `count` tokens or pixels."""
        self._extra_models.require_none(
            "losses can be weighed by counts where the loop trains one model"
        )
        self._loop.now.batch.require_samples()
        return self._loss_weights.weigh(loss, self.counted(count))

    def counted(self, count: float | torch.Tensor) -> float:
        """Return the count of this batch: 0 if its samples are borrowed."""
        number = as_count(count)
        return 0.0 if self._loop.now.is_benched else number

    def include(self, model: DistributedDataParallel, comm_hook: UserHook | None) -> None:
        """Weigh the gradients of a further model that trains on the same batches."""
        model = without_compiler(model)
        settings = self._loop.settings
        self._extra_models.add(model, comm_hook, settings.minimum, settings.mode)
        if has_batch_norm(model):
            self._loop.require_min_trainable(2)

    def average_buffers(self) -> None:
        """Average the buffers of all models, weighted by batch sizes; all workers must call it."""
        weight = gradient_weight(self._loop.batch_size, self._loop.total)
        with self._loop.away():
            for model in (self._model, *self._extra_models.models):
                average_buffers(model.module, weight, model.process_group, self._inflight)

    def restart(self, cap: int | None) -> None:
        """Begin again after a checkpoint, with its cap of this worker, if there is one."""
        if cap is not None:
            self._limit.expect(cap)
        self._loss_weights.forget()

    def _ready(self) -> tuple[Row, Arrived]:
        """End the iteration's own work, and return this worker's row."""
        loop = self._loop
        done = loop.stop()
        loop.cap, used = self._micro_batches.readings(loop.now.is_guarded, loop.now.batch.samples)
        return loop.report(used), lambda read: loop.arrive(done, partial(self._read, done, read))

    def _read(self, done: FinishedIteration, read: Read) -> Rows:
        """Return the rows about an iteration, whose gradients may not have been finite."""
        rows, is_finite = read()
        self._finite.see(done.iteration, is_finite)
        return rows

    def _on_accumulated(self) -> None:
        """Accumulate the gradients of a backward pass under no_sync."""
        self._loss_weights.end_pass()
        self._loop.keep()

    def _on_forward(self, model: torch.nn.Module, inputs: Any) -> None:
        """Pause the timer during an evaluation before the backward pass."""
        if model.training or torch.is_grad_enabled():
            self._loop.timer.resume()
        else:
            self._loop.timer.pause()


class AccumulationWatch:
    """Calls `ended` after each backward pass whose gradients were not exchanged."""

    def __init__(
        self,
        model: DistributedDataParallel,
        now: Callable[[], Iteration],
        ended: Callable[[], None],
    ) -> None:
        self._model = model
        self._now = now
        self._of: Iteration | None = None
        """The iteration of the forward pass whose backward pass is expected."""
        self._ended = ended
        self._hook: RemovableHandle | None = None
        self._is_muted = False
        model.register_forward_pre_hook(torch.compiler.disable(self._on_forward))

    @contextmanager
    def muted(self) -> Iterator[None]:
        """Ignore passes inside this context: its user keeps the gradients."""
        self._is_muted = True
        try:
            yield
        finally:
            self._is_muted = False

    def _forget(self) -> None:
        """Remove the hook: the backward pass has begun, or will not come."""
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    def _on_forward(self, model: torch.nn.Module, inputs: Any) -> None:
        if self._is_muted:
            return
        if torch.is_grad_enabled() and not self._model.require_backward_grad_sync:
            self._forget()
            self._of = self._now()
            trained = [p for p in model.parameters() if p.requires_grad]
            self._hook = register_multi_grad_hook(trained, self._on_gradient, mode="any")

    def _on_gradient(self, gradient: torch.Tensor) -> None:
        if self._now() is not self._of:
            # A gradient of a later iteration: the expected backward pass did not come.
            self._forget()
            return
        engine = torch.autograd.Variable._execution_engine
        engine.queue_callback(self._on_end)

    def _on_end(self) -> None:
        self._forget()
        self._ended()
