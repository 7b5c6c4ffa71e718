"""Weighs losses that are means over tokens or pixels instead of samples.

The gradient of the joined batch is the sum of count times gradient, divided by the sum of all
counts, which is known only after the exchange. So a loss is multiplied by its own count, over X to
keep numbers small. The counts travel with the reports, after the last gradients, and every bucket
is divided by their sum once that has arrived. No worker waits for it before.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch._C._distributed_c10d import GradBucket

from evenstep.errors import InvalidSetting, PartlyWeighed
from evenstep.pytorch.collective import InflightTensors

COUNT_WIDTH = 2
"""Numbers per worker: a count as a sum of two float32, which keeps 48 bits of it."""
_UNWEIGHED, _PARTLY, _SKIPPED = -1.0, -2.0, -3.0


class LossWeights:
    """Weighs losses by counts, and adds up the counts that go into one exchange.

    `parameters` returns those whose gradients are exchanged.
    """

    def __init__(self, total: int, parameters: Callable[[], list[Any]] = list) -> None:
        self._parameters = parameters
        self._aside: list[tuple[Any, torch.Tensor]] = []
        """Gradients of earlier exchanges that others are added to."""
        self._total = total
        """The scale of weighed losses, the same in all of an exchange, so it stays the first total:
        the divisor takes it out again."""
        self._sum = 0.0
        self._is_weighed = False
        self._skips = self._is_skipped = False
        self._was_weighed: set[bool] = set()
        self.calls = 0
        """The number of losses weighed so far."""
        self._divisor: torch.futures.Future[torch.Tensor] = torch.futures.Future()

    @property
    def count(self) -> float | None:
        """The count of the gradients of the next exchange; None if no loss was weighed."""
        if self.is_weighed:
            return self._sum
        # A worker without samples does not know whether the others weigh their losses.
        return 0.0 if self._is_skipped and not self._was_weighed else None

    @property
    def is_weighed(self) -> bool:
        """Whether a loss of the next exchange was weighed."""
        return self._is_weighed or True in self._was_weighed

    def weigh(self, loss: torch.Tensor, count: float) -> torch.Tensor:
        """Return the loss weighed by its count, which is added in the backward pass."""
        self.calls += 1
        weighed = loss * (count / self._total)
        if weighed.requires_grad:
            weighed.register_hook(lambda gradient: self._add(count))
        return weighed

    def skip(self) -> None:
        """Count nothing for a worker without samples, whether or not the others weigh."""
        self._skips = self._is_skipped = True

    @property
    def so_far(self) -> tuple[float, bool]:
        """The state to restore with `begin_again`."""
        return self._sum, self._is_weighed

    def begin_again(self, so_far: tuple[float, bool]) -> None:
        """Restore an earlier state, as the gradients since were discarded."""
        self._sum, self._is_weighed = so_far

    def end_pass(self) -> None:
        """Record the end of a backward pass, whether or not its loss was weighed."""
        if self._is_weighed or not self._skips:
            self._was_weighed.add(self._is_weighed)
        self._is_weighed = self._skips = False

    def forget(self) -> None:
        """Reset all counts, after an exchange or a restart."""
        self._sum = 0.0
        self._is_weighed = self._skips = self._is_skipped = False
        self._was_weighed.clear()

    def slot(self) -> NDArray[np.float32]:
        """Return the values to exchange, when the last pass before an exchange ends."""
        self.end_pass()
        if not self._was_weighed:
            return np.array([_SKIPPED, 0], dtype=np.float32)
        if self._was_weighed != {True}:
            mark = _PARTLY if True in self._was_weighed else _UNWEIGHED
            return np.array([mark, 0], dtype=np.float32)
        head = np.float32(self._sum)
        return np.array([head, self._sum - float(head)], dtype=np.float32)

    def divided(
        self,
        exchanged: torch.futures.Future[torch.Tensor],
        bucket: GradBucket,
        slots: Callable[[], torch.Tensor],
        inflight: InflightTensors,
    ) -> torch.futures.Future[torch.Tensor]:
        """Divide a bucket by the sum of all counts, which the `slots` of the last bucket hold."""
        if self.count is None:
            if bucket.is_last():
                self.forget()
            return exchanged
        if bucket.index() == 0:
            self._divisor = _future_on(bucket.buffer().device)
        divisor = self._divisor
        if bucket.is_last():
            self.forget()
            if self._aside:
                # DDP writes gradients in a callback at the end of the pass, which it queues after
                # this one. A callback that is queued by a callback runs after all of them.
                queue = torch.autograd.Variable._execution_engine.queue_callback
                queue(lambda: queue(self._add_aside))
            settle = inflight.watch(lambda done: _settle(done, divisor, slots, self._total))
            return exchanged.then(settle)

        def divide(both: torch.futures.Future[Any]) -> torch.Tensor:
            both.value()  # Raises the error of the exchange, if any.
            return exchanged.value().div_(divisor.value())

        return torch.futures.collect_all([exchanged, divisor]).then(inflight.watch(divide))

    def _add(self, count: float) -> None:
        if not self._is_weighed:
            self._begin_pass()
        self._sum += count
        self._is_weighed = True

    @torch.no_grad()
    def _begin_pass(self) -> None:
        """Compare the counts with the gradients that are there.

        The script may have dropped those of the counts so far, as SAM does. And those of an earlier
        exchange, which are means already, must not be divided by the counts of the next one.
        """
        there = [(p, p.grad) for p in self._parameters() if p.grad is not None]
        is_empty = not any(bool(gradient.any()) for _, gradient in there)
        if is_empty:
            self.forget()
            self._aside = []
        elif not self._sum and not self._was_weighed:
            self._aside = [(parameter, gradient.clone()) for parameter, gradient in there]
            for parameter, _ in there:
                parameter.grad = None

    @torch.no_grad()
    def _add_aside(self) -> None:
        for parameter, gradient in self._aside:
            parameter.grad = gradient if parameter.grad is None else parameter.grad.add_(gradient)
        self._aside = []


def as_number(value: float | torch.Tensor) -> float:
    """Return a value as a number; a tensor may still require a gradient."""
    return float(value.detach() if isinstance(value, torch.Tensor) else value)


def as_count(count: float | torch.Tensor) -> float:
    """Return a count as a number, or raise InvalidSetting."""
    value = as_number(count)
    if not (math.isfinite(value) and value >= 0):
        raise InvalidSetting(f"count must be a finite number >= 0, got {value}")
    return value


def check_slots(slots: NDArray[np.float32]) -> None:
    """Raise PartlyWeighed unless all losses of an exchange were weighed, or none."""
    marks = slots[:, 0]
    if (marks == _PARTLY).any():
        raise PartlyWeighed(
            "weigh must be called for all losses whose gradients are accumulated, or for none, "
            f"but worker {int(np.argmax(marks == _PARTLY))} called it for some of them"
        )
    unweighed = marks == _UNWEIGHED
    weighed = ~unweighed & (marks != _SKIPPED)
    if unweighed.any() and weighed.any():
        raise PartlyWeighed(
            "weigh must be called on all workers or on none in an iteration, but worker "
            f"{int(np.argmax(weighed))} called it and worker {int(np.argmax(unweighed))} did not"
        )


def _future_on(device: torch.device) -> torch.futures.Future[torch.Tensor]:
    return torch.futures.Future(devices=[device] if device.type == "cuda" else None)


def _settle(
    done: torch.futures.Future[torch.Tensor],
    divisor: torch.futures.Future[Any],
    slots: Callable[[], torch.Tensor],
    total: int,
) -> torch.Tensor:
    """Set the divisor for the other buckets, and divide the last one."""
    try:
        summed = done.value()
        known = _divisor_of(slots(), total)
    except Exception as error:
        # Otherwise the other buckets would wait for ever.
        divisor.set_exception(error)
        raise
    divisor.set_result(known)
    return summed.div_(known)


def _divisor_of(slots: torch.Tensor, total: int) -> torch.Tensor:
    """Return the sum of all counts over X, or 1 if the sum is 0."""
    head, tail = slots.to(torch.float64).T
    counted = torch.where(head < 0, 0.0, head + tail).sum() / total
    return torch.where(counted > 0, counted, 1.0)
