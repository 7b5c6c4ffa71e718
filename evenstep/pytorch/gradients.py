"""The gradients of a DDP model: computed in pieces if needed, weighed, accumulated, exchanged.

Hooks on the model observe its passes: the inputs of a forward pass tell which batch it runs on, and
the gradients of its outputs which batch a backward pass is of. The last bucket of gradients ends
the iteration of the loop, and carries the report of this worker.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from evenstep.core import gradient_weight
from evenstep.errors import InvalidSetting, UnknownBatch
from evenstep.pytorch.accumulation import AccumulationWatch, AccumulationWindow
from evenstep.pytorch.attribution import Attribution, tensors_in
from evenstep.pytorch.batch_limit import BatchLimit, peak_memory
from evenstep.pytorch.collective import InflightTensors
from evenstep.pytorch.comm_hook import register
from evenstep.pytorch.compatibility import (
    Hook,
    average_buffers,
    has_batch_norm,
    mark_batches,
    stop_broadcasting,
    without_compiler,
)
from evenstep.pytorch.exchange import Arrived, GradientExchange, Read, Rows, UserHook
from evenstep.pytorch.extra_models import ExtraModels
from evenstep.pytorch.finite import FiniteCheck
from evenstep.pytorch.loss_check import LossCheck, watch_losses
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
        attribution: Attribution,
        inflight: InflightTensors,
        comm_hook: UserHook | None,
        loss: str | None,
    ) -> None:
        self._model = model
        self._loop = loop
        self._attribution = attribution
        self._loss = loss or "mean"
        self._inflight = inflight
        device = next(model.parameters()).device
        self._limit = BatchLimit(loop.cap, loop.min_trainable, peak_memory(device))
        self._loss_weights = LossWeights(loop.total, self._trained)
        self._check = LossCheck()
        if loss is not None or loop.settings.mode in ("observe", "off"):
            self._check.close()
        else:
            watch_losses(self._check, _weakly(self))
        self._unknown: UnknownBatch | None = None
        """Why the batch of the last forward pass is unknown, if it is."""
        self._micro_batches = MicroBatches(
            model,
            self._limit,
            self._loss_weights,
            loop.settings.micro_batches,
            loop.timer.spoil,
            is_mean=self._loss == "mean",
            check=self._check,
        )
        self._window = AccumulationWindow(self._trained)
        self._running: list[Iteration] = []
        """The iterations that the running backward pass computes gradients of."""
        self._finite = FiniteCheck(loop.worker, loop.workers, loop.note)
        self._exchange = GradientExchange(
            model.process_group, self._loss_weights, self._weight, self._window, self._ready,
            inflight, self._finite, loop.explained, comm_hook, loop.row_width,
        )  # fmt: skip
        self._accumulation = AccumulationWatch(model, self._on_accumulated)
        self._extra_models = ExtraModels(model, self._exchange, loop.timer, inflight)
        stop_broadcasting(model)
        self._observe(model)
        self._inner_hook = model.module.register_forward_pre_hook(Hook(self._on_forward))
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
        self._attribution.attribute(batch)
        now = self._loop.now
        self._window.begin(self._weight() or 0.0)
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
        self._check.close()
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
        self._observe(model)
        if has_batch_norm(model):
            self._loop.require_min_trainable(2)

    def average_buffers(self) -> None:
        """Average the buffers of all models, weighted by batch sizes; all workers must call it."""
        weight = gradient_weight(self._loop.batch_size, self._loop.plan.total)
        with self._loop.away(), self._loop.explained():
            for model in (self._model, *self._extra_models.models):
                average_buffers(model.module, weight, model.process_group, self._inflight)

    def detach(self) -> None:
        """Leave the model inside DDP as it was, as it may outlive DDP and be pickled."""
        self._inner_hook.remove()

    def restart(self, cap: int | None) -> None:
        """Begin again after a checkpoint, with its cap of this worker, if there is one."""
        if cap is not None:
            self._limit.expect(cap)
        self._loss_weights.forget()
        self._window.end()

    def _trained(self) -> list[torch.nn.Parameter]:
        """Return the parameters of all models that are trained."""
        models = (self._model, *self._extra_models.models)
        return [p for model in models for p in model.parameters() if p.requires_grad]

    def _weight(self) -> float | None:
        """Return the gradient weight of the current batch; None if there is no batch.

        A loss that is a sum, or is divided by a count of all workers, is averaged as by plain DDP.
        """
        now = self._loop.now
        if not now.batch.total:
            return None
        if self._loss == "mean":
            return now.batch.weight
        return 0.0 if now.is_benched else 1 / self._loop.num_workers

    def _observe(self, model: DistributedDataParallel) -> None:
        """Observe the passes of a model."""
        model.register_forward_pre_hook(Hook(self._on_pass), with_kwargs=True)
        model.register_forward_hook(Hook(self._on_output))

    def _on_pass(self, model: torch.nn.Module, inputs: Any, named: Any) -> None:
        """Attribute a forward pass to a batch."""
        if self._accumulation.is_muted:
            return
        if torch.is_grad_enabled():
            # An error may have ended the last backward pass.
            self._running = []
            self._accumulation.forget()
            self._unknown = None
            try:
                self._attribution.attribute((inputs, named))
            except UnknownBatch as error:
                # It may be an evaluation, without a backward pass.
                self._unknown = error
                return
            self._window.begin(self._weight() or 0.0)
        elif not model.training:
            self._attribution.leave_out((inputs, named))

    def _on_output(self, model: torch.nn.Module, inputs: Any, outputs: Any) -> None:
        """Expect gradients of the outputs of a pass, which belong to its batch."""
        if self._accumulation.is_muted or not torch.is_grad_enabled():
            return
        keeps = model is self._model and not model.require_backward_grad_sync
        begin = partial(self._on_backward, self._unknown or self._loop.now, keeps)
        differentiable = [tensor for tensor in tensors_in(outputs) if tensor.requires_grad]
        for tensor in differentiable:
            tensor.register_hook(begin)
        if not differentiable and keeps:
            # Its outputs are in an object of unknown type.
            self._accumulation.expect()

    def _on_backward(
        self, iteration: Iteration | UnknownBatch, keeps: bool, gradient: torch.Tensor
    ) -> None:
        """Attribute a backward pass to the batch of its forward pass."""
        if isinstance(iteration, UnknownBatch):
            raise iteration
        if iteration in self._running:
            return
        if keeps:
            self._accumulation.expect()
        self._check.settle(self._attribution.samples_of(iteration))
        if not self._running and iteration is not self._loop.now:
            self._loop.use(iteration)
            self._window.begin(self._weight() or 0.0)
        self._running.append(iteration)
        first = self._running[0]
        if iteration.batch.weight != first.batch.weight and self._loss == "mean":
            raise UnknownBatch(
                "a backward pass must be of one batch, or of batches with the same gradient "
                f"weight on this worker, {first.batch.weight:.6g}, got another one with "
                f"{iteration.batch.weight:.6g}: call backward for each of them"
            )

    def expected_samples(self) -> int | None:
        """Return the samples of the batch whose backward pass comes next, or None."""
        return self._attribution.samples

    def _retire(self) -> None:
        """Record that the gradients of all batches of the backward pass were computed."""
        for iteration in self._running:
            if iteration is not self._loop.now:
                self._loop.retire(iteration)
        self._running = []

    def _ready(self) -> tuple[Row, Arrived]:
        """End the iteration's own work, and return this worker's row."""
        loop = self._loop
        self._retire()
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
        if self._loss_weights.is_weighed:
            # Their losses have their weights already.
            self._window.end()
        else:
            self._window.keep()
        self._loss_weights.end_pass()
        self._retire()
        self._loop.keep()

    def _on_forward(self, model: torch.nn.Module, inputs: Any) -> None:
        """Pause the timer during an evaluation before the backward pass."""
        if model.training or torch.is_grad_enabled():
            self._loop.resume()
        else:
            self._loop.pause()


def _weakly(gradients: Gradients) -> Callable[[], int | None]:
    """Return its expected samples, by a function that does not keep it in memory."""
    found = weakref.ref(gradients)

    def expected() -> int | None:
        gradients = found()
        return None if gradients is None else gradients.expected_samples()

    return expected
