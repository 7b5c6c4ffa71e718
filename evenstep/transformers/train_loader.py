"""The train loader of a balanced Trainer, in place of the one that Accelerate prepares."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from numpy.typing import ArrayLike

from evenstep.core import sealed
from evenstep.pytorch import BalancedLoader, Balancer
from evenstep.transformers.stock_loader import StockOrder, check_stock_loader, loading_of_stock


class TrainLoader:
    """Yields the batches of this worker, of the samples that the stock loaders would.

    It is made before the model is wrapped, so `bind` returns the balancer when the first epoch
    begins. `saved` is the state of a checkpoint that training resumes from.
    """

    def __init__(
        self,
        stock: Any,
        bind: Callable[[int], Balancer],
        counts: ArrayLike | None,
        saved: Mapping[str, Any] | None,
    ) -> None:
        check_stock_loader(stock)
        self.dataset = stock.dataset
        self._stock = stock
        self._bind = bind
        self._counts = counts
        self._saved = saved
        self._order = StockOrder(stock)
        self._loader: BalancedLoader | None = None
        self._epoch = 0
        self._skipped = 0

    def __len__(self) -> int:
        """The number of iterations of an epoch."""
        return len(self._stock)

    @property
    def total(self) -> int:
        """X: the samples of all workers in one iteration."""
        return int(self._stock.total_batch_size)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch, and with it the order of samples."""
        self._epoch = epoch
        self._stock.set_epoch(epoch)

    def skip(self, num_batches: int) -> TrainLoader:
        """Begin the next epoch after its first batches, as a resumed training does."""
        self._skipped = num_batches
        return self

    def __iter__(self) -> Iterator[Any]:
        loader = self._made()
        loader.set_epoch(self._epoch)
        if self._skipped:
            self._go_to_position(loader)
            self._skipped = 0
        return iter(loader)

    def state_dict(self) -> dict[str, Any]:
        """Return the position for a checkpoint, and the order of the epoch where it is random."""
        state = self._made().state_dict()
        if self._order.depends_on_epoch_only:
            state.pop("order", None)
        return sealed(state)

    def _made(self) -> BalancedLoader:
        if self._loader is None:
            balancer = self._bind(self.total)
            options: Any = {**loading_of_stock(self._stock), "counts": self._counts, "pad": False}
            self._loader = balancer.loader(self.dataset, sampler=self._order, **options)
        return self._loader

    def _go_to_position(self, loader: BalancedLoader) -> None:
        """Continue after the skipped batches; in the order of the checkpoint, if it has that one.

        Which batches are skipped is the Trainer's decision, also where a checkpoint says otherwise.
        """
        place = {
            "epoch": self._epoch,
            "position": self._skipped,
            "offset": self._skipped * self.total,
        }
        saved = self._saved or {}
        if "order" in saved and all(saved.get(name) == value for name, value in place.items()):
            loader.load_state_dict(saved)
        else:
            loader.go_to(self._epoch, self._skipped)
