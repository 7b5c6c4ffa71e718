"""A pass of the script over a DataLoader, which may become balanced in the middle of an epoch.

Batches are those of the stock loader until the watch says that its loader is balanced. From then on
they come from the balancer's loader, which continues at the same iteration: over all workers, its
samples are those that the stock loader would have handed out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sized
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader

from evenstep.pytorch.attribution import memory_of
from evenstep.pytorch.loader import BalancedLoader
from evenstep.training.iteration import Pass

if TYPE_CHECKING:
    from evenstep.run.watch import Watch

_MOST_RECENT = 8
"""Batches that are kept to see which of them a pass of the model runs on, up to the decision."""


class WatchedPass:
    """The iterator that a script gets from a DataLoader; `make` makes the stock one."""

    def __init__(
        self, watch: Watch, loader: DataLoader[Any], make: Callable[[], Iterator[Any]]
    ) -> None:
        self.loader = loader
        self.num_batches = 0
        """Batches that were handed out."""
        self.samples = 1
        """Those of the last batch of the stock loader."""
        self.lead: int | None = None
        """Batches that were handed out before that of the first training pass, or ahead of it."""
        self.can_switch = True
        """Whether it is known which batches are outstanding."""
        self.is_fresh = False
        """Whether a batch was handed out since the last pass of the model on a batch from here."""
        self.is_known = False
        """Whether the balancer handed out the last batch, or began an iteration with it."""
        self.of = Pass()
        """The pass that batches of the stock loader belong to, where a balancer adopts them."""
        self.recent: deque[tuple[int, Any]] = deque(
            maxlen=_MOST_RECENT if watch.balancing is None else 1
        )
        """The newest batches of the stock loader, each with its number of samples."""
        self._watch = watch
        self._is_stock = True
        self._epoch: int | None = None
        self._batches = iter(())
        if self._balanced is None:
            self._batches = make()
        elif loader.num_workers == 0:
            # What the stock iterator draws from the same generator.
            torch.empty((), dtype=torch.int64).random_(generator=loader.generator)

    def matching(self, inputs: Any) -> list[int]:
        """Return which of the recent batches the inputs share memory with."""
        memory = memory_of(inputs)
        return [i for i, (_, batch) in enumerate(self.recent) if memory_of(batch) & memory]

    def take_outstanding(self, inputs: Any) -> list[tuple[int, Any]]:
        """Return the recent batches that were not trained on, the one of these inputs first.

        Where memory does not tell, that is the last one, unless the script has fetched batches
        ahead or left some out. Which of them are outstanding is then unknown, so that stock
        batches follow to the end of the pass; as all have the same size, one is as good as another.
        """
        if self.lead is None:
            self.lead = self.num_batches - 1
        matching = self.matching(inputs)
        first = matching[0] if len(matching) == 1 else len(self.recent) - 1
        self.can_switch = len(matching) == 1 or self.lead == 0
        outstanding = list(self.recent)[first:]
        self.recent.clear()
        self.is_fresh, self.is_known = False, True
        return outstanding

    def __iter__(self) -> WatchedPass:
        return self

    def __next__(self) -> Any:
        if self._epoch is None:
            self._epoch = getattr(self.loader.sampler, "epoch", 0)
        balanced = self._balanced
        if self._is_stock and balanced is not None and (self.can_switch or not self.num_batches):
            self._continue_with(balanced, self._epoch)
        try:
            batch = self._next_stock() if self._is_stock else next(self._batches)
        except StopIteration:
            self.of.has_ended, self.is_fresh = True, False
            raise
        self.num_batches += 1
        self._watch.hand_out(self)
        return batch

    def __len__(self) -> int:
        return len(self.loader)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_batches"], name)

    @property
    def _balanced(self) -> BalancedLoader | None:
        """The balancer's loader in place of this one, if it is balanced."""
        balancing = self._watch.balancing
        return None if balancing is None else balancing.balanced.get(self.loader)

    def _continue_with(self, balanced: BalancedLoader, epoch: int) -> None:
        """Hand out the batches of the balancer's loader from this iteration on."""
        balanced.go_to(epoch, self.num_batches)
        self._batches, self._is_stock, self.is_known = iter(balanced), False, True
        self.recent.clear()
        # Or persistent loading processes of the stock loader would stay.
        self.loader._iterator = None

    def _next_stock(self) -> Any:
        """Return the next batch of the stock loader; an iteration begins if it is observed."""
        samples = self._count_samples()
        self.samples = max(samples, 1)
        balancing = self._watch.balancing
        self.is_known = False
        if balancing is not None and self.loader in balancing.observed and samples > 0:
            self.is_known = True
            return balancing.adopt(self, samples, lambda: next(self._batches))
        batch: Any = next(self._batches)
        if not self._watch.is_over:
            self.recent.append((self.samples, batch))
        return batch

    def _count_samples(self) -> int:
        """Return the number of samples of the next batch, as far as a sampler tells."""
        batch_size, sampler = self.loader.batch_size, self.loader.sampler
        if batch_size is None or not isinstance(sampler, Sized):
            return 1
        left = len(sampler) - self.num_batches * batch_size
        return 0 if left < batch_size and self.loader.drop_last else max(0, min(batch_size, left))
