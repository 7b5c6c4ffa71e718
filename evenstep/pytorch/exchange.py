"""The gradient exchange: weighted gradients, with the reports riding along.

A DDP communication hook. Every bucket is multiplied by ``x_i / X`` and summed over the workers,
which gives the gradient of the joined batch. The last bucket of an iteration carries the workers'
reports behind its gradients, so that they cost no second barrier; where a hook of the user owns the
all-reduce, or the bucket's dtype cannot carry them, a small all-reduce of their own goes with it.
Where losses were weighed by counts, their counts travel with the reports, and weigh in place of x.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch._C._distributed_c10d import GradBucket

from evenstep.pytorch.inflight import InflightTensors
from evenstep.pytorch.loss_weights import COUNT_WIDTH, LossWeights, check_slots
from evenstep.training.iteration import Share
from evenstep.training.report_rows import WIDTH, Row

UserHook = tuple[object, Callable[[Any, GradBucket], torch.futures.Future[torch.Tensor]]]
"""(state, hook), as for `register_comm_hook`."""

_CARRIERS = (torch.float32, torch.float64)


Rows = NDArray[np.float32]
Arrived = Callable[[Callable[[], Rows]], None]
"""Is given, once they are there, how to read the rows of all workers."""


class GradientExchange:
    """Weighs and sums the gradients of a DDP model, and gathers one row per worker.

    `share` is what the gradients of the coming exchange are computed on. `ready` is called when an
    iteration's last gradients are; it returns this worker's row, and what to call when everybody's
    rows have arrived; or None where there is nothing to report. A row has `width` numbers.
    """

    def __init__(
        self,
        group: dist.ProcessGroup,
        loss_weights: LossWeights,
        share: Callable[[], Share],
        ready: Callable[[], tuple[Row, Arrived] | None],
        inflight: InflightTensors,
        user_hook: UserHook | None = None,
        width: int = WIDTH,
    ) -> None:
        self._group = group
        self._num_workers = dist.get_world_size(group)
        self._worker = dist.get_rank(group)
        self._loss_weights = loss_weights
        self.share = share
        self._ready = ready
        self._inflight = inflight
        self._user_hook = user_hook
        self._carrier = torch.empty(0)
        self._width = width
        self._has_warned = False
        self._newest = torch.empty(0)

    def hook(self, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Exchange one bucket; called by DDP as soon as its gradients are ready."""
        # First of all, so that what follows does not count as this worker's own work.
        last = self._ready() if bucket.is_last() else None
        exchanged = self._exchange(bucket, last)
        return self._loss_weights.divided(exchanged, bucket, self._newest_counts, self._inflight)

    def _exchange(
        self, bucket: GradBucket, last: tuple[Row, Arrived] | None
    ) -> torch.futures.Future[torch.Tensor]:
        """Sum the weighted gradients of one bucket; with the last one, gather the rows."""
        if self._user_hook is not None:
            return self._with_user_hook(self._user_hook, bucket, last)
        buffer = bucket.buffer()
        if last is not None and buffer.dtype in _CARRIERS:
            return self._carry(buffer, *last)
        summed = self._sum(self._weigh(buffer, self._weight()), lambda: buffer)
        return summed if last is None else self._beside(summed, buffer.device, *last)

    def _arrive(self, rows: torch.Tensor, arrived: Arrived) -> None:
        """Copy the rows of an exchange to the host, and say how to read them there."""
        self._newest = rows
        if rows.device.type != "cuda":
            copy, copied = rows.clone(), None
        else:
            copy = rows.to("cpu", non_blocking=True)
            copied = torch.cuda.Event()
            copied.record()

        def read() -> Rows:
            if copied is not None:
                copied.synchronize()
            everything: Rows = self._rows(copy).to(torch.float32).numpy()
            check_slots(everything[:, self._width :])
            return everything[:, : self._width]

        arrived(read)

    def _weight(self) -> float:
        """Return ``x_i / X``; a plain mean for gradients that came from no batch of ours.

        What was weighed by counts has its weight already.
        """
        if self._loss_weights.count is not None:
            return 1.0 if self._loss_weights.count else 0.0
        share = self.share()
        if share.total:
            return share.weight
        if not self._has_warned:
            self._has_warned = True
            warnings.warn(
                "gradients came from no batch of the balancer's loader, and are averaged as plain "
                "DDP does; train on balancer.loader(...), and hand a further model that trains on "
                "the same batches to balancer.include(...)",
                stacklevel=2,
            )
        return 1 / self._num_workers

    def _weigh(self, buffer: torch.Tensor, weight: float) -> torch.Tensor:
        """Multiply in place; what has no weight is left out, be it not a number."""
        return buffer.mul_(weight) if weight else buffer.zero_()

    def _sum(
        self, tensor: torch.Tensor, result: Callable[[], torch.Tensor]
    ) -> torch.futures.Future[torch.Tensor]:
        """Sum a tensor in place over the workers; the future gives `result()` afterwards."""
        # A view, of which the process group is the only one to know.
        view = self._inflight.watch(tensor.view(-1))
        work = dist.all_reduce(view, group=self._group, async_op=True)
        future: torch.futures.Future[list[torch.Tensor]] = work.get_future()

        def arrived(done: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
            done.value()  # Raises what went wrong.
            return result()

        return future.then(self._inflight.watch(arrived))

    def _carry(
        self, buffer: torch.Tensor, row: Row, arrived: Arrived
    ) -> torch.futures.Future[torch.Tensor]:
        """Weigh the gradients into a tensor that has room for the rows behind them."""
        length = buffer.numel()
        carrier = self._carrier_for(buffer)
        weight = self._weight()
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
        self, user_hook: UserHook, bucket: GradBucket, last: tuple[Row, Arrived] | None
    ) -> torch.futures.Future[torch.Tensor]:
        """Let the user's hook average what was weighed by ``n x_i / X``."""
        state, hook = user_hook
        self._weigh(bucket.buffer(), self._num_workers * self._weight())
        exchanged = hook(state, bucket)
        return exchanged if last is None else self._beside(exchanged, bucket.buffer().device, *last)

    def _beside(
        self,
        exchanged: torch.futures.Future[torch.Tensor],
        device: torch.device,
        row: Row,
        arrived: Arrived,
    ) -> torch.futures.Future[torch.Tensor]:
        """Sum the rows in an all-reduce of their own, beside that of the gradients."""
        rows = torch.empty(self._num_workers * self._full_width, device=device)
        self._write(row, rows)
        summed = self._sum(rows, lambda: rows)

        def both(done: torch.futures.Future[Any]) -> torch.Tensor:
            self._arrive(rows, arrived)
            return exchanged.value()

        return torch.futures.collect_all([exchanged, summed]).then(self._inflight.watch(both))

    def _write(self, row: Row, rows: torch.Tensor) -> None:
        rows.zero_()
        written = np.concatenate((row, self._loss_weights.slot()))
        self._rows(rows)[self._worker] = torch.from_numpy(written)

    def _newest_counts(self) -> torch.Tensor:
        """Return the counts of all workers, where the gradients are."""
        return self._rows(self._newest)[:, self._width :]

    def _rows(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the rows one below the other."""
        return rows.view(self._num_workers, self._full_width)

    @property
    def _full_width(self) -> int:
        """Numbers that travel for each worker: its row, and its counts."""
        return self._width + COUNT_WIDTH

    def _carrier_for(self, buffer: torch.Tensor) -> torch.Tensor:
        """Return a tensor for the bucket and the rows; buckets are rebuilt once at the start."""
        length = buffer.numel() + self._num_workers * self._full_width
        old = self._carrier
        if (old.numel(), old.dtype, old.device) != (length, buffer.dtype, buffer.device):
            self._carrier = torch.empty(length, dtype=buffer.dtype, device=buffer.device)
        return self._carrier
