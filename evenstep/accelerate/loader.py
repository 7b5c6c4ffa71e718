"""The loader that takes the place of Accelerate's own: its order, with batches of planned sizes.

Accelerate asks the loader that runs whether this batch is its last one, to end an accumulation
window, and how many of the samples in it are not repeated, for metrics. `DataLoaderStateMixin` is
its way to answer. No batch is fetched ahead: the length of an epoch is known.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.data_loader import DataLoaderStateMixin
from accelerate.state import GradientState
from accelerate.utils import send_to_device, synchronize_rng_states
from torch.utils.data import DataLoader

from evenstep.accelerate.order import StockOrder
from evenstep.core import SavedState, sealed
from evenstep.errors import InvalidSetting
from evenstep.pytorch import Balancer
from evenstep.pytorch.loader_options import batches_of, loading_of
from evenstep.training.epochs import Dealt


class AcceleratedLoader(DataLoaderStateMixin):  # type: ignore[misc]
    """Iterates over the batches of this worker; made by `prepare`.

    `source` is the DataLoader of the script, `stock` what Accelerate made of it.
    """

    _is_accelerate_prepared = True

    def __init__(
        self,
        accelerator: Accelerator,
        balancer: Balancer,
        source: DataLoader[Any],
        stock: Any,
        multiple: int,
    ) -> None:
        batches = batches_of(source)
        self.balancer = balancer
        self.gradient_state = GradientState()
        self.iteration = 0
        """The epoch, as Accelerate counts them."""
        self._stock = stock
        self._order = StockOrder(batches, multiple)
        self._drop_last = batches.drop_last
        self._passes = 0
        """Passes that were begun, each with an order of its own."""
        self._resumes = False
        """Whether the next pass continues one of a checkpoint."""
        self._seeds = torch.Generator()
        """Seeds the loading processes."""
        loading = loading_of(source, source.num_workers) | {"generator": self._seeds}
        self._balanced = balancer.loader(
            source.dataset,
            sampler=self._order, drop_last=self._drop_last, pad=False, **loading,
        )  # fmt: skip
        self.device = accelerator.device if accelerator.dispatch_batches else stock.device
        if self.device is not None:
            self._balanced.place_with(
                partial(send_to_device, device=self.device, non_blocking=accelerator.non_blocking)
            )

    @property
    def dataset(self) -> Any:
        """The data set, from which samples are read."""
        return self._balanced.dataset

    @property
    def batch_size(self) -> int:
        """This worker's current batch size."""
        return self._balanced.batch_size

    @property
    def total_batch_size(self) -> int:
        """The samples of all workers in one iteration."""
        return self.balancer.total

    @property
    def total_dataset_length(self) -> int:
        """The number of samples of an epoch, without those that are repeated."""
        return self._order.num_samples

    @property
    def dealt(self) -> Dealt | None:
        """This worker's samples in the batch that was handed out last, and the sizes of all."""
        return self._balanced.dealt

    @property
    def sampler(self) -> AcceleratedLoader:
        """The loader itself, for loops that call `loader.sampler.set_epoch`."""
        return self

    @property
    def batch_sampler(self) -> Any:
        """Raises InvalidSetting: batches are planned, and not made by a batch sampler."""
        raise InvalidSetting(
            "a balanced loader has no batch_sampler, as its batches are planned: to skip batches, "
            "call accelerator.skip_first_batches(loader, num_batches)"
        )

    def __len__(self) -> int:
        """The number of iterations of an epoch."""
        return len(self._balanced)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch; by default, each epoch follows the last one.

        The epoch of a restored checkpoint continues at its position.
        """
        if epoch != self.iteration:
            self.iteration, self._resumes = epoch, False

    def __iter__(self) -> Iterator[Any]:
        return self.iterate()

    def iterate(self, skip: int | None = None) -> Iterator[Any]:
        """Yield the batches of an epoch, from this one on if one is given."""
        if skip is not None and skip >= len(self):
            return
        self._begin_pass()
        balanced, epochs = self._balanced, self._balanced.epochs
        if skip is not None:
            epochs.go_to(epochs.epoch, skip, skip * self.balancer.total)
        self.begin()
        self.remainder = -1 if self._drop_last else self._order.num_samples % self.balancer.total
        try:
            for batch in balanced:
                self.end_of_dataloader = epochs.position >= len(epochs)
                yield batch
            self._order.end()
            self.iteration += 1
        finally:
            self.end()

    def _begin_pass(self) -> None:
        """Begin a pass as Accelerate's loader does, or continue that of a checkpoint."""
        stock = self._stock
        if self._resumes:
            stock.set_epoch(self.iteration)
            # Without a draw, which the pass before the checkpoint has made.
            self._seeds.manual_seed((torch.initial_seed() + self.iteration) % 2**63)
            self._resumes = False
            return
        if getattr(stock, "rng_types", None) is not None:
            synchronize_rng_states(stock.rng_types, stock.synchronized_generator)
        stock.set_epoch(self.iteration)
        if not (stock.persistent_workers and self._passes):
            # The draw with which a DataLoader begins an epoch.
            drawn = torch.empty((), dtype=torch.int64).random_(generator=stock.generator)
            self._seeds.manual_seed(int(drawn))
        self._order.draw()
        self._balanced.set_epoch(self._passes)
        self._passes += 1

    def state_dict(self) -> dict[str, Any]:
        """Return the position, the order, and everything that the balancer has learned."""
        generator = self._order.generator
        return sealed(
            {
                "balancer": self.balancer.state_dict(),
                "loader": self._balanced.state_dict(),
                "iteration": self.iteration,
                "generator": None if generator is None else generator.get_state(),
            }
        )

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a checkpoint, in mid-epoch after the last batch that was trained on.

        A state that is refused changes nothing.
        """
        balanced, generator = self._balanced, self._order.generator
        saved = SavedState(
            "a loader of Accelerate", state, "balancer", "loader", "iteration", "generator"
        )
        iteration, drawn = saved.whole("iteration"), saved["generator"]
        balanced.check_state(saved["loader"])
        if generator is not None and drawn is not None:
            check_generator(saved, drawn)
        self.balancer.load_state_dict(saved["balancer"])
        balanced.load_state_dict(saved["loader"])
        self.iteration = iteration
        self._resumes = "order" in saved["loader"]
        if generator is not None and drawn is not None:
            generator.set_state(drawn)
        self._order.end()
        if self._resumes and balanced.epochs.position >= len(balanced):
            # Saved in the body of the loop, after the last batch of an epoch.
            self.iteration, self._resumes = self.iteration + 1, False
            balanced.epochs.end()
        self._passes = balanced.epochs.epoch + self._resumes


def check_generator(saved: SavedState, drawn: Any) -> None:
    """Raise StateFileError unless a generator can continue from this state."""
    try:
        torch.Generator().set_state(drawn)
    except (RuntimeError, TypeError) as error:
        raise saved.wrong("generator", "the state of a generator of torch") from error


class SkippingLoader:
    """A view of a loader for one epoch, without its first batches."""

    _is_accelerate_prepared = True

    def __init__(self, loader: AcceleratedLoader, num_batches: int) -> None:
        self.loader = loader
        self.dataset = loader.dataset
        self._num_batches = num_batches

    def __iter__(self) -> Iterator[Any]:
        return self.loader.iterate(skip=self._num_batches)

    def __len__(self) -> int:
        return max(0, len(self.loader) - self._num_batches)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the loader."""
        self.loader.set_epoch(epoch)
