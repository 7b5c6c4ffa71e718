"""Balances the loaders that a model trains on, once the workers have decided to."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from evenstep.errors import InvalidSetting
from evenstep.pytorch.balancer import Balancer
from evenstep.pytorch.collective import ProcessGroupCollective
from evenstep.pytorch.compatibility import has_batch_norm
from evenstep.pytorch.loader import BalancedLoader
from evenstep.run.checks import agree, check_loader, check_verdicts
from evenstep.run.losses import Losses
from evenstep.run.passes import WatchedPass


class Balancing:
    """The balancer of a model, and the loaders of the script that it takes the place of.

    Raises an EvenstepError, with everything as it was, if the settings do not allow a balancer. All
    workers must make it, and call `train_on` for the same passes of the model.
    """

    def __init__(
        self,
        model: DistributedDataParallel,
        loader: DataLoader[Any],
        total: int,
        settings: dict[str, Any],
        collective: ProcessGroupCollective,
    ) -> None:
        self.balancer = Balancer(model, total, **{"loss": "mean", **settings})
        self.balanced: weakref.WeakKeyDictionary[DataLoader[Any], BalancedLoader]
        self.balanced = weakref.WeakKeyDictionary()
        """The loaders of the script, with those of the balancer in their place."""
        self.observed: weakref.WeakSet[DataLoader[Any]] = weakref.WeakSet()
        """The loaders whose batches stay, and begin iterations that are measured."""
        self._model = weakref.ref(model)
        self._collective = collective
        self._is_judged = "loss" in settings
        """Whether it is known what losses are."""
        self._observes = settings.get("mode") == "observe"
        self._takes_more = True
        """Whether further loaders may become balanced."""
        self._judged: weakref.WeakSet[DataLoader[Any]] = weakref.WeakSet()
        """The loaders of which it is known whether they can be balanced."""
        self._losses = Losses()
        self._replace(loader)
        if collective.worker == 0:
            self._announce(has_batch_norm(model))

    def adopt(self, one: WatchedPass, samples: int, fetch: Callable[[], Any]) -> Any:
        """Begin an iteration of even sizes with a batch of a stock loader, and return it."""
        return self.balancer.adopt(one.of, samples, fetch)

    def adopt_outstanding(self, one: WatchedPass, inputs: Any) -> None:
        """Begin iterations with the stock batches that were not trained on yet."""
        for i, (samples, batch) in enumerate(one.take_outstanding(inputs)):
            self.balancer.adopt(one.of, samples, partial(_same, batch), is_next=i == 0)
            # It was fetched before the timer started.
            self.balancer.spoil_time()

    def train_on(
        self, model: DistributedDataParallel, found: list[WatchedPass], inputs: Any
    ) -> None:
        """See a training pass of a model, which may run on a batch of a stock loader."""
        if model is not self._model():
            if any(one.is_known for one in found):
                raise InvalidSetting(
                    "a loop that evenstep run balances must train one model, got a second one "
                    "after the first iterations: use Balancer.include in the script"
                )
            return
        for one in found:
            if not one.can_switch and not one.recent and self.balancer.has_exchanged:
                # A copy of a stock batch that was fetched long before, at the end of an epoch, say.
                # Gradients of all stock batches weigh the same.
                self.balancer.adopt(one.of, one.samples, partial(_same, inputs), is_next=True)
                self.balancer.spoil_time()
            if one.is_known or not one.recent:
                continue
            if self._takes_more and one.loader not in self._judged:
                self._consider(one)
            self.adopt_outstanding(one, inputs)

    def end(self) -> None:
        """Hand out stock batches again, from the next pass over a loader on."""
        if self._takes_more and self._collective.worker == 0:
            say("balances no further, as the script has made a second model")
        self._takes_more = False
        self.balanced.clear()
        self.observed.clear()

    def close(self) -> None:
        """End the run log, and print the summary."""
        self._losses.close()
        self.balancer.close()

    def _consider(self, one: WatchedPass) -> None:
        """Balance a further loader that the script trains on, such as one made for each epoch.

        As with the first one, its loss is judged before.
        """
        if not one.of.has_trained:
            self._losses.watch(one)
            return
        self._judged.add(one.loader)
        verdicts = self._losses.close()

        def check() -> dict[str, Any]:
            if not (self._is_judged or self._observes):
                check_verdicts(verdicts)
            return check_loader(one.loader, self._collective.num_workers)

        try:
            total = agree(check, self._collective)
        except InvalidSetting:
            return
        if total == self.balancer.total:
            self._replace(one.loader)

    def _replace(self, loader: DataLoader[Any]) -> None:
        """Hand out batches of the balancer in place of this loader's, from its next one on."""
        self._judged.add(loader)
        if self._observes:
            self.observed.add(loader)
        else:
            self.balanced[loader] = self.balancer.loader(loader)

    def _announce(self, normalises: bool) -> None:
        done = "observes" if self._observes else "balanced"
        total, num_workers = self.balancer.total, self._collective.num_workers
        say(f"{done} 1 loader, total {total}, {num_workers} workers")
        if normalises:
            say(
                "note: the model has BatchNorm, which normalises by the batch of one worker: with "
                "other batch sizes, its results are not exactly those of the stock script"
            )


def say(text: str) -> None:
    """Print a line for the user."""
    print(f"evenstep: {text}", file=sys.stderr, flush=True)


def _same(batch: Any) -> Any:
    return batch
