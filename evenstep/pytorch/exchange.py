"""The gradient exchange: weighted gradients, with the reports riding along.

A DDP communication hook. Every bucket is multiplied by ``x_i / X`` and summed over the workers,
which gives the gradient of the joined batch. The last bucket of an iteration carries the workers'
reports behind its gradients, so that they cost no second barrier; where a hook of the user owns the
all-reduce, or the bucket's dtype cannot carry them, a small all-reduce of their own goes with it.
"""

# Annotations stay objects in this file: DDP inspects those of a hook.
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch._C._distributed_c10d import GradBucket

from evenstep.transports.slots import WIDTH, Row

UserHook = tuple[object, Callable[[Any, GradBucket], torch.futures.Future[torch.Tensor]]]
"""(state, hook), as for `register_comm_hook`."""

_CARRIERS = (torch.float32, torch.float64)


@dataclass
class Share:
    """This worker's part of the batches that go into one exchange."""

    samples: int = 0
    """x: samples of this worker."""
    total: int = 0
    """X: samples of all workers."""

    def __add__(self, other: "Share") -> "Share":
        return Share(self.samples + other.samples, self.total + other.total)


class GradientExchange:
    """Weighs and sums the gradients of a DDP model, and gathers one row per worker."""

    def __init__(
        self,
        group: dist.ProcessGroup,
        ready: Callable[[], Row],
        user_hook: UserHook | None = None,
        lag: int = 0,
    ) -> None:
        self._group = group
        self._num_workers = dist.get_world_size(group)
        self._worker = dist.get_rank(group)
        self._ready = ready
        self._user_hook = user_hook
        self._carrier = torch.empty(0)
        self._lag = lag
        self._arrived: deque[tuple[torch.Tensor, torch.cuda.Event | None]] = deque()
        self.share = Share()
        """What the gradients of the coming exchange were computed on."""

    def hook(self, state: object, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Exchange one bucket; called by DDP as soon as its gradients are ready."""
        # First of all, so that what follows does not count as this worker's own work.
        row = self._ready() if bucket.is_last() else None
        buffer = bucket.buffer()
        if self._user_hook is not None:
            return self._with_user_hook(self._user_hook, bucket, row)
        if row is None:
            return self._sum(buffer.mul_(self._weight()))
        if buffer.dtype in _CARRIERS:
            return self._carry(buffer, row)
        return self._beside(self._sum(buffer.mul_(self._weight())), row, buffer.device)

    def take_rows(self) -> NDArray[np.float32] | None:
        """Return the rows of all workers of an exchange, once; None where there was none.

        They are those of the last one, or, with a lag, of so many exchanges before it: a device
        that runs ahead has them by then, and nobody waits.
        """
        if len(self._arrived) <= self._lag:
            return None
        rows, copied = self._arrived.popleft()
        if copied is not None:
            copied.synchronize()
        array: NDArray[np.float32] = rows.to(torch.float32).numpy()
        return array.reshape(self._num_workers, WIDTH)

    def _arrive(self, rows: torch.Tensor) -> None:
        """Keep the rows of an exchange, on the host."""
        if rows.device.type != "cuda":
            self._arrived.append((rows.clone(), None))
            return
        copy = rows.to("cpu", non_blocking=True)
        copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
        copied.record()
        self._arrived.append((copy, copied))

    def _weight(self) -> float:
        """Return ``x_i / X``; a plain mean for gradients that came from no batch of ours."""
        if self.share.total == 0:
            return 1 / self._num_workers
        return self.share.samples / self.share.total

    def _sum(self, tensor: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
        work = dist.all_reduce(tensor, group=self._group, async_op=True)
        future: torch.futures.Future[list[torch.Tensor]] = work.get_future()
        return future.then(lambda done: done.value()[0])

    def _carry(self, buffer: torch.Tensor, row: Row) -> torch.futures.Future[torch.Tensor]:
        """Weigh the gradients into a tensor that has room for the rows behind them."""
        length = buffer.numel()
        carrier = self._carrier_for(buffer)
        torch.mul(buffer, self._weight(), out=carrier[:length])
        self._write(row, carrier[length:])

        def split(done: torch.futures.Future[torch.Tensor]) -> torch.Tensor:
            self._arrive(carrier[length:])
            return carrier[:length]

        return self._sum(carrier).then(split)

    def _with_user_hook(
        self, user_hook: UserHook, bucket: GradBucket, row: Row | None
    ) -> torch.futures.Future[torch.Tensor]:
        """Let the user's hook average what was weighed by ``n x_i / X``."""
        state, hook = user_hook
        bucket.buffer().mul_(self._num_workers * self._weight())
        exchanged = hook(state, bucket)
        return exchanged if row is None else self._beside(exchanged, row, bucket.buffer().device)

    def _beside(
        self, exchanged: torch.futures.Future[torch.Tensor], row: Row, device: torch.device
    ) -> torch.futures.Future[torch.Tensor]:
        """Sum the rows in an all-reduce of their own, beside that of the gradients."""
        rows = torch.empty(self._num_workers * WIDTH, device=device)
        self._write(row, rows)
        summed = self._sum(rows)

        def both(done: torch.futures.Future[Any]) -> torch.Tensor:
            self._arrive(rows)
            return exchanged.value()

        return torch.futures.collect_all([exchanged, summed]).then(both)

    def _write(self, row: Row, rows: torch.Tensor) -> None:
        begin = self._worker * WIDTH
        rows.zero_()
        rows[begin : begin + WIDTH] = torch.from_numpy(row)

    def _carrier_for(self, buffer: torch.Tensor) -> torch.Tensor:
        """Return a tensor for the bucket and the rows; buckets are rebuilt once at the start."""
        length = buffer.numel() + self._num_workers * WIDTH
        old = self._carrier
        if (old.numel(), old.dtype, old.device) != (length, buffer.dtype, buffer.device):
            self._carrier = torch.empty(length, dtype=buffer.dtype, device=buffer.device)
        return self._carrier
