"""Watches a script train, and balances the loader that it trains on.

Nothing tells at the start of a loop over a DataLoader whether the script will train on it. So all
batches are those of the stock loaders at first, and all gradients those of plain DDP, up to the
first gradient exchange. The next training pass of the model is where DDP itself makes the workers
meet, to rebuild its buckets. There they exchange what each of them saw, and either all of them make
a balancer, or none of them changes anything. Iterations before that are even, so their gradients
are right in both cases. The loader becomes balanced at its next batch, in the same epoch.

Batches of other loaders stay as they are. A training pass on one of them is an iteration of even
sizes for the balancer, and its loader becomes balanced, too, if it can be.
"""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Callable, Iterator
from functools import partial, wraps
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from evenstep.errors import EvenstepError, InvalidSetting
from evenstep.pytorch.attribution import tensors_in
from evenstep.pytorch.balancer import Balancer
from evenstep.pytorch.collective import ProcessGroupCollective, collective_of
from evenstep.pytorch.compatibility import has_batch_norm
from evenstep.pytorch.loader import BalancedLoader
from evenstep.pytorch.loss_check import LossWatch
from evenstep.pytorch.loss_kind import Verdict, verdict_of
from evenstep.run.checks import (
    check_loader,
    check_passes,
    check_trainer,
    check_verdicts,
    explain_nothing,
)
from evenstep.run.passes import WatchedPass
from evenstep.training.collective import compare, gather_values


class Watch:
    """Watches DataLoaders and DDP models of this process, while it is entered.

    `settings` are options of a `Balancer`.
    """

    def __init__(self, settings: dict[str, Any]) -> None:
        self._settings = settings
        self._restores: list[Callable[[], None]] = []
        self.is_over = False
        """Whether the script is left alone from now on."""
        self._is_refused = False
        self._passes: weakref.WeakSet[WatchedPass] = weakref.WeakSet()
        self._newest: weakref.ref[WatchedPass] | None = None
        """The pass that handed out the last batch."""
        self._models: weakref.WeakSet[DistributedDataParallel] = weakref.WeakSet()
        """Models with training passes."""
        self._used: list[WatchedPass] = []
        """The passes whose batches the model may have been trained on."""
        self._verdicts: list[Verdict] = []
        self._losses: LossWatch | None = None
        self._exchanged: weakref.ref[DistributedDataParallel] | None = None
        """The model whose gradients were exchanged first."""
        self.balancer: Balancer | None = None
        self._balances = True
        """Whether loaders may become balanced."""
        self._model: weakref.ref[DistributedDataParallel] | None = None
        """The model of the balancer."""
        self._collective: ProcessGroupCollective | None = None
        """The workers of the model."""
        self._judged: weakref.WeakSet[DataLoader[Any]] = weakref.WeakSet()
        """The loaders of which it is known whether they can be balanced."""
        self.balanced: weakref.WeakKeyDictionary[DataLoader[Any], BalancedLoader]
        self.balanced = weakref.WeakKeyDictionary()
        """The loaders of the script whose place a loader of the balancer takes."""
        self.observed: weakref.WeakSet[DataLoader[Any]] = weakref.WeakSet()
        """The loaders whose batches begin iterations that are only measured."""

    def __enter__(self) -> Watch:
        if self._settings.get("mode") == "off":
            self._refuse("mode is off")
        else:
            self._wrap_iter()
            self._wrap_init()
            self._wrap_call()
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        self._stop_watching()
        if self.balancer is not None:
            self.balancer.close()
        elif not self._is_refused and (kind is None or issubclass(kind, SystemExit)):
            self._refuse(explain_nothing())

    def hand_out(self, one: WatchedPass) -> None:
        """Record that a pass has handed out a batch."""
        one.is_fresh = True
        self._newest = weakref.ref(one)

    def adopt(self, one: WatchedPass, samples: int, fetch: Callable[[], Any]) -> Any:
        """Begin an iteration of even sizes with a batch of a stock loader."""
        assert self.balancer is not None
        return self.balancer.adopt(one.of, samples, fetch)

    def _wrap_iter(self) -> None:
        """Hand out the batches of all DataLoaders through passes that are watched."""
        original: Any = DataLoader.__iter__

        @wraps(original)
        def iterate(loader: DataLoader[Any]) -> Iterator[Any]:
            # Loaders of balancers have loading processes of their own.
            is_ours = type(loader.batch_sampler).__module__.startswith("evenstep.")
            if self.is_over or is_ours:
                made: Iterator[Any] = original(loader)
                return made
            one = WatchedPass(self, loader, lambda: original(loader))
            self._passes.add(one)
            return one

        self._put(DataLoader, "__iter__", iterate)

    def _wrap_call(self) -> None:
        """Watch the passes of all DDP models.

        A hook of each model would be part of its copies and checkpoints.
        """
        original: Any = DistributedDataParallel.__call__
        before, after = map(torch.compiler.disable, (self._before, self._after))

        @wraps(original)
        def call(model: DistributedDataParallel, *inputs: Any, **named: Any) -> Any:
            before(model, (inputs, named))
            outputs = original(model, *inputs, **named)
            after(model, outputs)
            return outputs

        self._put(DistributedDataParallel, "__call__", call)

    def _wrap_init(self) -> None:
        """Notice further DDP models, whose gradients would need the same weights."""
        original: Any = DistributedDataParallel.__init__

        @wraps(original)
        def init(model: DistributedDataParallel, *args: Any, **options: Any) -> None:
            original(model, *args, **options)
            if self.balancer is not None and not self.is_over:
                self._end(self.balancer)

        self._put(DistributedDataParallel, "__init__", init)

    def _put(self, owner: type[Any], name: str, function: Any) -> None:
        """Replace a method of a class until watching stops."""
        own = vars(owner).get(name)
        setattr(owner, name, function)
        restore = (
            partial(delattr, owner, name) if own is None else partial(setattr, owner, name, own)
        )
        self._restores.append(restore)

    def _before(self, model: DistributedDataParallel, inputs: Any) -> None:
        """See a forward pass of a model before it runs."""
        if self.is_over:
            return
        found = self._find(inputs)
        if not torch.is_grad_enabled():
            for one in found[:1]:
                one.is_fresh = False
            return
        self._models.add(model)
        if self.balancer is not None:
            self._train_on(model, found, inputs)
        elif self._exchanged is not None and self._exchanged() is model:
            self._decide(model, found, inputs)
        else:
            self._use(found)

    def _use(self, found: list[WatchedPass]) -> None:
        for one in found:
            one.is_fresh = False
            if one not in self._used:
                one.lead = one.num_batches - 1
                self._used.append(one)
        self._watch_losses()

    def _after(self, model: DistributedDataParallel, outputs: Any) -> None:
        """Wait for the backward pass of a training pass, before there is a balancer."""
        if self.is_over or self.balancer is not None or not torch.is_grad_enabled():
            return
        if model.require_backward_grad_sync and self._exchanged is None:
            found = weakref.ref(model)

            def on_backward(gradient: torch.Tensor) -> None:
                self._exchanged = self._exchanged or found

            for tensor in tensors_in(outputs):
                if tensor.requires_grad:
                    tensor.register_hook(on_backward)

    def _see(self, loss: torch.Tensor) -> None:
        """Judge a loss before its backward pass."""
        if self._used:
            self._verdicts.append(verdict_of(loss, self._used[-1].samples))

    def _find(self, inputs: Any) -> list[WatchedPass]:
        """Return the passes whose batches the inputs may be: by memory, or else by order."""
        alive = list(self._passes)
        newest = None if self._newest is None else self._newest()
        found = [one for one in alive if one.matching(inputs)]
        if found or newest is None:
            return found
        if self.balancer is not None:
            return [newest]
        # Another pass over the same loader was one to look at a batch, say.
        fresh = [one for one in alive if one.is_fresh and one.loader is not newest.loader]
        return [newest, *fresh] if newest.is_fresh else fresh or [newest]

    def _decide(
        self, model: DistributedDataParallel, found: list[WatchedPass], inputs: Any
    ) -> None:
        """Make a balancer on all workers, or on none of them."""
        self._collective = collective_of(model.process_group)
        loaders = list({id(one.loader): one.loader for one in self._used}.values())
        try:
            total = self._agreed_total(lambda: self._check(model, loaders))
            self.balancer = Balancer(model, total, **{"loss": "mean", **self._settings})
        except EvenstepError as error:
            self._refuse(str(error))
            return
        self._model = weakref.ref(model)
        self._replace(loaders[0])
        if self.balancer.worker == 0:
            self._announce(model)
        for one in found:
            self._adopt_outstanding(one, inputs)

    def _check(
        self, model: DistributedDataParallel, loaders: list[DataLoader[Any]]
    ) -> dict[str, Any]:
        check_trainer(loaders)
        check_passes(model, len(self._models), len(loaders))
        return self._check_loader(loaders[0])

    def _check_loader(self, loader: DataLoader[Any]) -> dict[str, Any]:
        assert self._collective is not None
        if self._weighs and "loss" not in self._settings:
            check_verdicts(self._verdicts)
        return check_loader(loader, self._collective.num_workers)

    def _agreed_total(self, check: Callable[[], dict[str, Any]]) -> int:
        """Return the total if no worker's check raises; otherwise, raise on all of them."""
        assert self._collective is not None
        self._close_losses()
        problem, common = None, {}
        try:
            common = check()
        except InvalidSetting as error:
            problem = str(error)
        except Exception as error:
            # The other workers wait for an answer.
            problem = f"the loop cannot be judged: {error!r}"
        seen = gather_values(self._collective, [problem, common])
        for text, _ in seen:
            if text is not None:
                raise InvalidSetting(text)
        compare([theirs for _, theirs in seen])
        return int(common["total"])

    @property
    def _weighs(self) -> bool:
        """Whether sizes may become unequal."""
        return bool(self._settings.get("mode") != "observe")

    def _replace(self, loader: DataLoader[Any]) -> None:
        """Hand out batches of the balancer in place of this loader's, from its next one on."""
        assert self.balancer is not None
        self._used = []
        self._judged.add(loader)
        if self._weighs:
            self.balanced[loader] = self.balancer.loader(loader)
        else:
            self.observed.add(loader)

    def _announce(self, model: DistributedDataParallel) -> None:
        assert self.balancer is not None
        done = "balanced" if self._weighs else "observes"
        total, num_workers = self.balancer.total, self.balancer.num_workers
        _say(f"{done} 1 loader, total {total}, {num_workers} workers")
        if has_batch_norm(model):
            _say(
                "note: the model has BatchNorm, which normalises by the batch of one worker: with "
                "other batch sizes, its results are not exactly those of the stock script"
            )

    def _adopt_outstanding(self, one: WatchedPass, inputs: Any) -> None:
        """Begin iterations with the stock batches that were not trained on yet."""
        assert self.balancer is not None
        for samples, batch in one.take_outstanding(inputs):
            self.adopt(one, samples, partial(_same, batch))
            # It was fetched before the timer started.
            self.balancer.spoil_time()

    def _train_on(
        self, model: DistributedDataParallel, found: list[WatchedPass], inputs: Any
    ) -> None:
        """See a training pass of the balanced model, which may run on a batch of another loader."""
        assert self.balancer is not None and self._model is not None
        if model is not self._model():
            if any(one.is_known for one in found):
                raise InvalidSetting(
                    "a loop that evenstep run balances must train one model, got a second one "
                    "after the first iterations: use Balancer.include in the script"
                )
            return
        for one in found:
            if one.is_known or not one.recent:
                one.is_fresh = False
                continue
            if self._balances and one.loader not in self._judged:
                self._balance_further(one)
            self._adopt_outstanding(one, inputs)

    def _balance_further(self, one: WatchedPass) -> None:
        """Balance a further loader that the script trains on, such as one made for each epoch."""
        assert self.balancer is not None
        if not one.of.has_trained:
            if self._used != [one]:
                self._used, self._verdicts = [one], []
                self._watch_losses()
            return
        self._judged.add(one.loader)
        try:
            total = self._agreed_total(lambda: self._check_loader(one.loader))
        except InvalidSetting:
            return
        if total == self.balancer.total:
            self._replace(one.loader)

    def _end(self, balancer: Balancer) -> None:
        """Hand out stock batches again, from the next pass over a loader on."""
        if self._balances and balancer.worker == 0:
            _say("balances no further, as the script has made a second model")
        self._balances = False
        self.balanced.clear()
        self.observed.clear()

    def _watch_losses(self) -> None:
        if self._losses is None:
            self._losses = LossWatch(self._see)

    def _close_losses(self) -> None:
        if self._losses is not None:
            self._losses.close()
            self._losses = None

    def _refuse(self, reason: str) -> None:
        """Leave the script alone, and say why."""
        self._is_refused = True
        self._stop_watching()
        if os.environ.get("RANK", "0") == "0":
            _say(f"balanced nothing, the script runs as it would without: {reason}")

    def _stop_watching(self) -> None:
        self.is_over = True
        self._close_losses()
        self._used = []
        for one in self._passes:
            one.recent.clear()
        while self._restores:
            self._restores.pop()()


def _same(batch: Any) -> Any:
    return batch


def _say(text: str) -> None:
    print(f"evenstep: {text}", file=sys.stderr, flush=True)
