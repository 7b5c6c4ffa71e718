"""The gradient exchange: weighted gradients, together with the reports.

A DDP communication hook. Every bucket is multiplied by ``x_i / X`` and summed over the workers,
which gives the gradient of the joined batch. The last bucket of an iteration also carries the
reports of the workers, so that they need no second barrier. If a hook of the user does the
all-reduce, or the dtype of the bucket cannot hold reports, they have a small all-reduce of their
own. If losses were weighed by counts, the counts travel with the reports, and replace x as weights.
So does a mark of each worker whether its gradients were finite.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch._C._distributed_c10d import GradBucket

from evenstep.core import Bools
from evenstep.pytorch.accumulation import AccumulationWindow
from evenstep.pytorch.collective import InflightTensors
from evenstep.pytorch.finite import MARK_WIDTH, FiniteCheck
from evenstep.pytorch.loss_weights import COUNT_WIDTH, LossWeights, check_slots
from evenstep.training.report_rows import WIDTH, Row

UserHook = tuple[object, Callable[[Any, GradBucket], torch.futures.Future[torch.Tensor]]]
"""(state, hook), as for `register_comm_hook`."""

_CARRIERS = (torch.float32, torch.float64)

Rows = NDArray[np.float32]
Read = Callable[[], tuple[Rows, Bools]]
"""Returns the rows of all workers, and whether the gradients of each were finite."""
Arrived = Callable[[Read], None]
"""Called when the rows of all workers have arrived, with a function that reads them."""


class GradientExchange:
    """Weighs and sums the gradients of a DDP model, and gathers one row per worker.

    `weight` returns the gradient weight of the batch that gradients are computed on, or None if
    there is none; `window` has the gradients of earlier batches. `ready` is called when the last
    gradients of an iteration are ready; it returns this worker's row and the function to call when
    the rows of all workers have arrived, or None if there is no report. `explained` makes a context
    in which a failure of the exchange names the missing worker. A row has `width` numbers.
    """

    def __init__(
        self,
        group: dist.ProcessGroup,
        loss_weights: LossWeights,
        weight: Callable[[], float | None],
        window: AccumulationWindow,
        ready: Callable[[], tuple[Row, Arrived] | None],
        inflight: InflightTensors,
        finite: FiniteCheck,
        explained: Callable[[], AbstractContextManager[None]],
        user_hook: UserHook | None = None,
        width: int = WIDTH,
    ) -> None:
        self._group = group
        self._num_workers = dist.get_world_size(group)
        self._worker = dist.get_rank(group)
        self._loss_weights = loss_weights
        self.weight = weight
        self.window = window
        self._ready = ready
        self._inflight = inflight
        self.finite = finite
        self.explained = explained
        self._user_hook = user_hook
        self._carrier = torch.empty(0)
        self._width = width
        self._has_warned = False
        self._newest = torch.empty(0)

    def hook(self, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Exchange one bucket; called by DDP as soon as its gradients are ready."""
        # First, so that the rest does not count as this worker's own work.
        last = self._ready() if bucket.is_last() else None
        self.window.correct(bucket)
        exchanged = self._exchange(bucket, last)
        if last is not None:
            self.window.end()
        return self._loss_weights.divided(exchanged, bucket, self._newest_counts, self._inflight)

    def _exchange(
        self, bucket: GradBucket, last: tuple[Row, Arrived] | None
    ) -> torch.futures.Future[torch.Tensor]:
        """Sum the weighted gradients of one bucket; with the last one, gather the rows."""
        buffer, weight = bucket.buffer(), self._weight()
        if weight:
            self.finite.add(buffer)
        if self._user_hook is not None:
            return self._with_user_hook(self._user_hook, bucket, weight, last)
        if last is not None and buffer.dtype in _CARRIERS:
            return self._carry(buffer, weight, *last)
        summed = self._sum(self._weigh(buffer, weight), lambda: buffer)
        return summed if last is None else self._with_rows(summed, buffer.device, *last)

    def _arrive(self, rows: torch.Tensor, arrived: Arrived) -> None:
        """Copy the rows of an exchange to the host, and pass on how to read them."""
        self._newest = rows
        if rows.device.type != "cuda":
            copy, copied = rows.clone(), None
        else:
            copy = rows.to("cpu", non_blocking=True)
            copied = torch.cuda.Event()
            copied.record()

        def read() -> tuple[Rows, Bools]:
            if copied is not None:
                copied.synchronize()
            everything: Rows = self._rows(copy).to(torch.float32).numpy()
            check_slots(everything[:, self._width : -MARK_WIDTH])
            return everything[:, : self._width], np.isfinite(everything[:, -1])

        arrived(read)

    def _weight(self) -> float:
        """Return the gradient weight; ``1 / n`` if gradients came from no batch of a loader.

        Losses that were weighed by counts have their weight already.
        """
        if self._loss_weights.count is not None:
            return 1.0 if self._loss_weights.count else 0.0
        if self.weight() is not None:
            return self.window.weight
        if not self._has_warned:
            self._has_warned = True
            warnings.warn(
                "gradients came from no batch of the balancer's loader, and are averaged as plain "
                "DDP does; train on balancer.loader(...), and pass a further model that trains on "
                "the same batches to balancer.include(...)",
                stacklevel=2,
            )
        return 1 / self._num_workers

    def _weigh(self, buffer: torch.Tensor, weight: float) -> torch.Tensor:
        """Multiply in place; a weight of 0 also removes NaN."""
        return buffer.mul_(weight) if weight else buffer.zero_()

    def _sum(
        self, tensor: torch.Tensor, result: Callable[[], torch.Tensor]
    ) -> torch.futures.Future[torch.Tensor]:
        """Sum a tensor in place over the workers; the future then returns `result()`."""
        # A view that only the process group holds, to see when it is released.
        view = self._inflight.watch(tensor.view(-1))
        work = dist.all_reduce(view, group=self._group, async_op=True)
        future: torch.futures.Future[list[torch.Tensor]] = work.get_future()

        def arrived(done: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
            with self.explained():
                done.value()  # Raises the error of the exchange, if any.
            return result()

        return future.then(self._inflight.watch(arrived))

    def _carry(
        self, buffer: torch.Tensor, weight: float, row: Row, arrived: Arrived
    ) -> torch.futures.Future[torch.Tensor]:
        """Weigh the gradients into a tensor with space for the rows at its end."""
        length = buffer.numel()
        carrier = self._carrier_for(buffer)
        if weight:
            torch.mul(buffer, weight, out=carrier[:length])
        else:
            carrier[:length].zero_()
        self._write(row, carrier[length:])

        def split() -> torch.Tensor:
            self._arrive(carrier[length:], arrived)
            return carrier[:length]

        return self._sum(carrier, split)

    def _with_user_hook(
        self,
        user_hook: UserHook,
        bucket: GradBucket,
        weight: float,
        last: tuple[Row, Arrived] | None,
    ) -> torch.futures.Future[torch.Tensor]:
        """Weigh the gradients by ``n x_i / X``, and let the hook of the user average them."""
        state, hook = user_hook
        self._weigh(bucket.buffer(), self._num_workers * weight)
        exchanged = hook(state, bucket)
        return (
            exchanged if last is None else self._with_rows(exchanged, bucket.buffer().device, *last)
        )

    def _with_rows(
        self,
        exchanged: torch.futures.Future[torch.Tensor],
        device: torch.device,
        row: Row,
        arrived: Arrived,
    ) -> torch.futures.Future[torch.Tensor]:
        """Sum the rows in a separate all-reduce, in parallel to that of the gradients."""
        rows = torch.empty(self._num_workers * self._full_width, device=device)
        self._write(row, rows)
        summed = self._sum(rows, lambda: rows)

        def both(done: torch.futures.Future[Any]) -> torch.Tensor:
            self._arrive(rows, arrived)
            with self.explained():
                return exchanged.value()

        return torch.futures.collect_all([exchanged, summed]).then(self._inflight.watch(both))

    def _write(self, row: Row, rows: torch.Tensor) -> None:
        rows.zero_()
        written = np.concatenate((row, self._loss_weights.slot()))
        mine = self._rows(rows)[self._worker]
        mine[:-MARK_WIDTH] = torch.from_numpy(written)
        self.finite.write(mine[-1])

    def _newest_counts(self) -> torch.Tensor:
        """Return the counts of all workers, on the device of the gradients."""
        return self._rows(self._newest)[:, self._width : -MARK_WIDTH]

    def _rows(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the rows as a matrix."""
        return rows.view(self._num_workers, self._full_width)

    @property
    def _full_width(self) -> int:
        """Numbers exchanged per worker: its row, its counts, and its mark."""
        return self._width + COUNT_WIDTH + MARK_WIDTH

    def _carrier_for(self, buffer: torch.Tensor) -> torch.Tensor:
        """Return a tensor for the bucket and the rows; DDP rebuilds buckets once at the start."""
        length = buffer.numel() + self._num_workers * self._full_width
        old = self._carrier
        if (old.numel(), old.dtype, old.device) != (length, buffer.dtype, buffer.device):
            self._carrier = torch.empty(length, dtype=buffer.dtype, device=buffer.device)
        return self._carrier
