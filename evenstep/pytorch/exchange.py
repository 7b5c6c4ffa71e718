"""The gradient exchange: weighted gradients, with the reports riding along.

A DDP communication hook. Every bucket is multiplied by ``x_i / X`` and summed over the workers,
which gives the gradient of the joined batch. The last bucket of an iteration carries the workers'
reports behind its gradients, so that they cost no second barrier; where a hook of the user owns the
all-reduce, or the bucket's dtype cannot carry them, a small all-reduce of their own goes with it.
Where losses were weighed by counts, their counts travel with the reports, and weigh in place of x.
"""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch._C._distributed_c10d import GradBucket

from evenstep.core.arrays import Ints
from evenstep.errors import InvalidSetting
from evenstep.pytorch.handed import Handed
from evenstep.pytorch.weighing import COUNT_WIDTH, Weighing, check_slots
from evenstep.transports.slots import WIDTH, Row

UserHook = tuple[object, Callable[[Any, GradBucket], torch.futures.Future[torch.Tensor]]]
"""(state, hook), as for `register_comm_hook`."""

_CARRIERS = (torch.float32, torch.float64)


Ticket = TypeVar("Ticket")


@dataclass(frozen=True, eq=False)
class Share:
    """This worker's part of the batches that go into one exchange."""

    sizes: Ints
    """x of all workers: the samples really processed."""
    worker: int
    importance: Ints | None = None
    """How many samples each worker's gradient counts for in the mean, if not for x."""

    @property
    def counted(self) -> Ints:
        """How many samples each worker's gradient counts for in the mean."""
        return self.sizes if self.importance is None else self.importance

    @property
    def samples(self) -> int:
        """x of this worker."""
        return int(self.sizes[self.worker])

    @property
    def total(self) -> int:
        """X: samples of all workers."""
        return int(self.sizes.sum())

    @property
    def weight(self) -> float:
        """The part of this worker's gradient in the mean: ``x_i / X``, or by importance."""
        return float(self.counted[self.worker] / self.counted.sum())

    def require_samples(self) -> None:
        """Raise InvalidSetting where gradients count for something else than their samples."""
        if self.importance is not None:
            raise InvalidSetting(
                "with importance=True a loss must be a mean over this worker's own batch, which "
                "stands for its partition: leave balancer.weigh out"
            )

    def __add__(self, other: Share) -> Share:
        plain = self.importance is None and other.importance is None
        importance = None if plain else self.counted + other.counted
        return Share(self.sizes + other.sizes, self.worker, importance)


@dataclass(frozen=True, eq=False)
class _Arrival(Generic[Ticket]):
    """The rows of an exchange on the host, or on their way to it."""

    ticket: Ticket
    rows: torch.Tensor
    copied: torch.cuda.Event | None


class GradientExchange(Generic[Ticket]):
    """Weighs and sums the gradients of a DDP model, and gathers one row per worker.

    `ready` is called when an iteration's last gradients are; it returns this worker's row, and a
    ticket that is given back with everybody's rows; or None where there is nothing to report. A row
    has `width` numbers.
    """

    def __init__(
        self,
        group: dist.ProcessGroup,
        weighing: Weighing,
        ready: Callable[[], tuple[Row, Ticket] | None],
        handed: Handed,
        user_hook: UserHook | None = None,
        lag: int = 0,
        width: int = WIDTH,
    ) -> None:
        self._group = group
        self._num_workers = dist.get_world_size(group)
        self._worker = dist.get_rank(group)
        self._weighing = weighing
        self._ready = ready
        self._handed = handed
        self._user_hook = user_hook
        self._carrier = torch.empty(0)
        self._lag = lag
        self._width = width
        self._has_warned = False
        self._arrived: deque[_Arrival[Ticket]] = deque()
        self._newest = torch.empty(0)
        self.share = Share(np.zeros(self._num_workers, dtype=np.int64), self._worker)
        """What the gradients of the coming exchange were computed on."""

    def hook(self, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Exchange one bucket; called by DDP as soon as its gradients are ready."""
        # First of all, so that what follows does not count as this worker's own work.
        last = self._ready() if bucket.is_last() else None
        exchanged = self._exchange(bucket, last)
        return self._weighing.divided(exchanged, bucket, self._newest_counts, self._handed)

    def _exchange(
        self, bucket: GradBucket, last: tuple[Row, Ticket] | None
    ) -> torch.futures.Future[torch.Tensor]:
        """Sum the weighted gradients of one bucket; with the last one, gather the rows."""
        if self._user_hook is not None:
            return self._with_user_hook(self._user_hook, bucket, last)
        buffer = bucket.buffer()
        if last is not None and buffer.dtype in _CARRIERS:
            return self._carry(buffer, *last)
        summed = self._sum(self._weigh(buffer, self._weight()), lambda: buffer)
        return summed if last is None else self._beside(summed, buffer.device, *last)

    def take_rows(self, lag: int | None = None) -> Iterator[tuple[NDArray[np.float32], Ticket]]:
        """Yield the rows of all workers, exchange by exchange, each once.

        With a lag, those of the last exchanges are left for later: a device that runs ahead has
        them by then, and nobody waits.
        """
        while len(self._arrived) > (self._lag if lag is None else lag):
            arrival = self._arrived.popleft()
            if arrival.copied is not None:
                arrival.copied.synchronize()
            rows: NDArray[np.float32] = self._rows(arrival.rows).to(torch.float32).numpy()
            check_slots(rows[:, self._width :])
            yield rows[:, : self._width], arrival.ticket

    def forget(self) -> None:
        """Drop what has arrived and was not taken."""
        self._arrived.clear()
        self._weighing.forget()

    def _arrive(self, rows: torch.Tensor, ticket: Ticket) -> None:
        """Keep the rows of an exchange, on the host."""
        self._newest = rows
        if rows.device.type != "cuda":
            self._arrived.append(_Arrival(ticket, rows.clone(), None))
            return
        copy = rows.to("cpu", non_blocking=True)
        copied = torch.cuda.Event()
        copied.record()
        self._arrived.append(_Arrival(ticket, copy, copied))

    def _weight(self) -> float:
        """Return ``x_i / X``; a plain mean for gradients that came from no batch of ours.

        What was weighed by counts has its weight already.
        """
        if self._weighing.count is not None:
            return 1.0 if self._weighing.count else 0.0
        if self.share.total:
            return self.share.weight
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
        view = self._handed.watch(tensor.view(-1))
        work = dist.all_reduce(view, group=self._group, async_op=True)
        future: torch.futures.Future[list[torch.Tensor]] = work.get_future()

        def arrived(done: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
            done.value()  # Raises what went wrong.
            return result()

        return future.then(self._handed.watch(arrived))

    def _carry(
        self, buffer: torch.Tensor, row: Row, ticket: Ticket
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
            self._arrive(carrier[length:], ticket)
            return carrier[:length]

        return self._sum(carrier, split)

    def _with_user_hook(
        self, user_hook: UserHook, bucket: GradBucket, last: tuple[Row, Ticket] | None
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
        ticket: Ticket,
    ) -> torch.futures.Future[torch.Tensor]:
        """Sum the rows in an all-reduce of their own, beside that of the gradients."""
        rows = torch.empty(self._num_workers * self._full_width, device=device)
        self._write(row, rows)
        summed = self._sum(rows, lambda: rows)

        def both(done: torch.futures.Future[Any]) -> torch.Tensor:
            self._arrive(rows, ticket)
            return exchanged.value()

        return torch.futures.collect_all([exchanged, summed]).then(self._handed.watch(both))

    def _write(self, row: Row, rows: torch.Tensor) -> None:
        rows.zero_()
        written = np.concatenate((row, self._weighing.slot()))
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
