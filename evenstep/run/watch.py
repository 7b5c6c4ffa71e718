"""Watches a script train, up to the decision whether it can be balanced.

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
import weakref
from collections.abc import Callable, Iterator
from functools import partial, wraps
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from evenstep.errors import EvenstepError
from evenstep.pytorch.attribution import tensors_in
from evenstep.pytorch.collective import collective_of
from evenstep.run.balancing import Balancing, say
from evenstep.run.checks import (
    agree,
    check_loader,
    check_passes,
    check_trainer,
    check_verdicts,
    explain_nothing,
)
from evenstep.run.losses import Losses
from evenstep.run.passes import WatchedPass


class Watch:
    """Watches DataLoaders and DDP models of this process, while it is entered.

    `settings` are options of a `Balancer`.
    """

    def __init__(self, settings: dict[str, Any]) -> None:
        self._settings = settings
        self._restores: list[Callable[[], None]] = []
        self.is_over = False
        """Whether the script is left alone from now on."""
        self.balancing: Balancing | None = None
        """There after the decision, unless it was against it."""
        self._passes: weakref.WeakSet[WatchedPass] = weakref.WeakSet()
        self._newest: weakref.ref[WatchedPass] | None = None
        """The pass that handed out the last batch."""
        self._models: weakref.WeakSet[DistributedDataParallel] = weakref.WeakSet()
        """Models with training passes."""
        self._used: list[WatchedPass] = []
        """The passes over loaders that the model may have been trained on."""
        self._losses = Losses()
        self._exchanged: weakref.ref[DistributedDataParallel] | None = None
        """The model whose gradients were exchanged first."""

    def __enter__(self) -> Watch:
        if self._settings.get("mode") == "off":
            self._refuse("mode is off")
        else:
            self._wrap_iter()
            self._wrap_init()
            self._wrap_call()
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if self.balancing is not None:
            self.balancing.close()
        elif not self.is_over and (kind is None or issubclass(kind, SystemExit)):
            self._refuse(explain_nothing())
        self._stop_watching()

    def hand_out(self, one: WatchedPass) -> None:
        """Record that a pass has handed out a batch."""
        one.is_fresh = True
        self._newest = weakref.ref(one)

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
            if self.balancing is not None:
                self.balancing.end()

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
        if self.balancing is not None:
            self.balancing.train_on(model, found, inputs)
        elif self._exchanged is not None and self._exchanged() is model:
            self._decide(model, found, inputs)
        else:
            self._use(found)

    def _use(self, found: list[WatchedPass]) -> None:
        """Record a training pass of plain DDP on batches of these passes over loaders."""
        for one in found:
            one.is_fresh = False
            self._losses.watch(one)
            if one not in self._used:
                one.lead = one.num_batches - 1
                self._used.append(one)

    def _after(self, model: DistributedDataParallel, outputs: Any) -> None:
        """Wait for the backward pass of a training pass, up to the decision."""
        if self.is_over or self.balancing is not None or not torch.is_grad_enabled():
            return
        if model.require_backward_grad_sync and self._exchanged is None:
            found = weakref.ref(model)

            def on_backward(gradient: torch.Tensor) -> None:
                self._exchanged = self._exchanged or found

            for tensor in tensors_in(outputs):
                if tensor.requires_grad:
                    tensor.register_hook(on_backward)

    def _find(self, inputs: Any) -> list[WatchedPass]:
        """Return the passes whose batches the inputs may be: by memory, or else by order."""
        alive = list(self._passes)
        newest = None if self._newest is None else self._newest()
        found = [one for one in alive if one.matching(inputs)]
        if found or newest is None:
            return found
        if self.balancing is not None:
            return [newest]
        # Another pass over the same loader was one to look at a batch, say.
        fresh = [one for one in alive if one.is_fresh and one.loader is not newest.loader]
        return [newest, *fresh] if newest.is_fresh else fresh or [newest]

    def _decide(
        self, model: DistributedDataParallel, found: list[WatchedPass], inputs: Any
    ) -> None:
        """Balance on all workers, or on none of them."""
        collective = collective_of(model.process_group)
        loaders = list({id(one.loader): one.loader for one in self._used}.values())
        try:
            check = partial(self._check, model, loaders, collective.num_workers)
            total = agree(check, collective)
            self.balancing = Balancing(model, loaders[0], total, self._settings, collective)
        except EvenstepError as error:
            self._refuse(str(error))
            return
        self._used = []
        for one in found:
            self.balancing.adopt_outstanding(one, inputs)

    def _check(
        self, model: DistributedDataParallel, loaders: list[DataLoader[Any]], num_workers: int
    ) -> dict[str, Any]:
        """Return what all workers must have in common; raise if this one cannot be balanced."""
        verdicts = self._losses.close()
        check_trainer(loaders)
        check_passes(model, len(self._models), len(loaders))
        common = check_loader(loaders[0], num_workers)
        if "loss" not in self._settings and self._settings.get("mode") != "observe":
            check_verdicts(verdicts)
        return common

    def _refuse(self, reason: str) -> None:
        """Leave the script alone, and say why."""
        self._stop_watching()
        if os.environ.get("RANK", "0") == "0":
            say(f"balanced nothing, the script runs as it would without: {reason}")

    def _stop_watching(self) -> None:
        self.is_over = True
        self._losses.close()
        self._used = []
        for one in self._passes:
            one.recent.clear()
        while self._restores:
            self._restores.pop()()
