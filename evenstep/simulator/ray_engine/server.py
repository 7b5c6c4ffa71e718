"""The parameter server on Ray, as the coordinator sees it: shards that are replaced when they die.

A shard that dies is started anew from the state that was kept last, and is given once more what
the workers had pushed for the update to come. With a state kept after every update nothing is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from evenstep.errors import EngineFailed
from evenstep.simulator.engine.optimizers import Optimizer, make_optimizer
from evenstep.simulator.engine.parameter_server import Tensors, make_shards
from evenstep.simulator.engine.replica import Replica
from evenstep.simulator.engine.sharding import ShardLayout
from evenstep.simulator.ray_engine.calls import (
    Gone,
    Handle,
    Ref,
    fetch,
    get,
    kill,
    pack,
    start_actor,
    unpack,
)
from evenstep.simulator.ray_engine.faults import Faults, Restarts
from evenstep.simulator.ray_engine.ray_settings import RaySettings
from evenstep.simulator.ray_engine.shard_actor import ShardActor
from evenstep.simulator.schemes import Scheme
from evenstep.simulator.workloads.workload import Evaluation


@dataclass(frozen=True)
class Pushed:
    """A gradient that counts: who computed it, and has it still."""

    worker: int
    ticket: int
    weight: float
    source: Handle

    @property
    def key(self) -> tuple[int, int, float]:
        return self.worker, self.ticket, self.weight


@dataclass(frozen=True)
class _Kept:
    version: int = 0
    state: Ref | None = None
    """None at the beginning, which a shard is made with."""


class RayServer:
    """Parameters and buffers on shards that are actors."""

    def __init__(
        self,
        layout: ShardLayout,
        tensors: Sequence[torch.Tensor],
        optimizer: Optimizer,
        num_workers: int,
        synchronous: bool,
        settings: RaySettings,
        faults: Faults,
    ) -> None:
        """`num_workers` is n, those that count."""
        self._layout = layout
        self._settings = settings
        self._faults = faults
        self._restarts = Restarts(settings.restarts)
        self._makers = make_shards(_maker, layout, tensors, optimizer, num_workers, synchronous)
        self._kept = [_Kept()] * len(self._makers)
        self._counted: list[Pushed] = []
        """What goes into the update to come."""
        self.version = 0
        """Updates made."""
        self.pids: dict[int, int] = {}
        """The process of each shard, on whichever machine that is."""
        self._shards = [make() for make in self._makers]

    @property
    def handles(self) -> list[Handle]:
        """The shards of now."""
        if not self._shards:
            raise EngineFailed("a run on Ray must be used while it is open, it has been closed")
        return self._shards

    def gather(self) -> None:
        """Wait until all shards run."""
        ready = [handle.ready.remote() for handle in self.handles]
        self.pids = dict(enumerate(get(ready, self._settings.start_patience)))

    def pull(self) -> Tensors:
        """Return parameters, then buffers, as they are now."""
        parts = self._ask(lambda shard: shard.pull.remote(), self._get)
        return self._layout.join([unpack(arrays) for _, arrays in parts])

    def count(self, pushed: Pushed) -> None:
        """Let a gradient, which its worker has pushed to all shards, be part of the update."""
        found = self._ask(lambda shard: shard.count.remote(*pushed.key), self._get)
        self._counted.append(pushed)
        for place in np.flatnonzero(np.logical_not(found)).tolist():
            self._count_again(place, pushed)

    def update(self) -> None:
        """Apply what counts."""
        version = self.version + 1
        keep = version % self._settings.keep_every == 0
        states = self._ask(
            lambda shard: shard.update.options(num_returns=2).remote(keep), self._get_state
        )
        self.version = version
        self._counted.clear()
        if keep:
            self._kept = [_Kept(version, state) for state in states]

    def mend(self) -> None:
        """Replace all shards that do not answer."""
        self._ask(lambda shard: shard.ready.remote(), self._get)

    def close(self) -> None:
        """End all shards."""
        for handle in self._shards:
            kill(handle)
        self._shards = []

    def _ask(self, call: Callable[[Handle], Any], receive: Callable[[Any], Any]) -> list[Any]:
        """Ask all shards at once; one that is gone is replaced, and asked again."""
        asked = [call(handle) for handle in self.handles]
        for place, question in enumerate(asked):
            while True:
                try:
                    asked[place] = receive(question)
                    break
                except Gone as gone:
                    self._replace(place, str(gone))
                    question = call(self.handles[place])
        return asked

    def _get(self, result: Ref) -> Any:
        return get(result, self._settings.patience)

    def _get_state(self, results: tuple[Ref, Ref]) -> Ref:
        """Wait until a shard has made its update, and leave its state where it is, near by."""
        done, state = results
        self._get(done)
        fetch(state, self._settings.patience)
        return state

    def _replace(self, place: int, why: str) -> None:
        """Start a shard anew from what was kept."""
        kept = self._kept[place]
        ready = False
        while not ready:
            self._restarts.add(f"shard {place}", why)
            kill(self.handles[place])
            handle = self.handles[place] = self._makers[place]()
            try:
                get(handle.load.remote(kept.state, self.version), self._settings.start_patience)
                self.pids[place] = self._get(handle.ready.remote())
                ready = True
            except Gone as gone:
                why = str(gone)
        lost = self.version - kept.version
        self._note(place, f"{why}; restarted from update {kept.version}, {lost} updates lost")
        for pushed in self._counted:
            self._count_again(place, pushed)

    def _count_again(self, place: int, pushed: Pushed) -> None:
        """Give a shard what it had lost, or never got: the worker still has it."""
        shard = self.handles[place]
        try:
            again = self._get(pushed.source.push_again.remote(pushed.ticket, place, shard))
            counted = again and self._get(shard.count.remote(*pushed.key))
        except Gone:
            counted = False
        if not counted:
            self._note(place, f"has lost the gradient of worker {pushed.worker}")

    def _note(self, place: int, what: str) -> None:
        self._faults.note(f"shard {place}", self.version, what)


def _maker(tensors: Tensors, optimizer: Optimizer, average: bool) -> Callable[[], Handle]:
    return partial(start_actor, ShardActor, pack(tensors), optimizer, average)


def make_server(
    replica: Replica,
    scheme: Scheme,
    optimizer: str,
    num_shards: int,
    settings: RaySettings,
    faults: Faults,
) -> RayServer:
    """Start the shards with the parameters and buffers of a replica."""
    sizes = [parameter.numel() for parameter in replica.parameters]
    return RayServer(
        ShardLayout.of(sizes, len(replica.buffers), num_shards),
        [*replica.parameters, *replica.buffers],
        make_optimizer(optimizer),
        scheme.num_counted,
        scheme.synchronous,
        settings,
        faults,
    )


class ServerEvaluator:
    """Evaluates in this process what the shards hold."""

    def __init__(self, replica: Replica, server: RayServer) -> None:
        self._replica = replica
        self._server = server

    @property
    def parameters(self) -> list[torch.Tensor]:
        return self._server.pull()

    def evaluate(self) -> Evaluation:
        return self._replica.evaluate(self._server.pull())
