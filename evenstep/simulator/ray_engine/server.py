"""The parameter server on Ray, the coordinator's side: replaces shards that die.

A dead shard is restarted from the last saved state, and workers push again what they had pushed for
the next update. With a state saved after every update nothing is lost.
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
    """A gradient that counts, and the worker that still holds it."""

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
    """None: the initial state of the shard."""


class RayServer:
    """Parameters and buffers on shards that are Ray actors."""

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
        """`num_workers` is n: the workers that count."""
        self._layout = layout
        self._settings = settings
        self._faults = faults
        self._restarts = Restarts(settings.restarts)
        self._makers = make_shards(_maker, layout, tensors, optimizer, num_workers, synchronous)
        self._kept = [_Kept()] * len(self._makers)
        self._counted: list[Pushed] = []
        """The gradients of the next update."""
        self.version = 0
        """Number of updates."""
        self.pids: dict[int, int] = {}
        """The process id of each shard on its machine."""
        self._shards = [make() for make in self._makers]

    @property
    def handles(self) -> list[Handle]:
        """The current shards."""
        if not self._shards:
            raise EngineFailed("a run on Ray must be used while it is open, it has been closed")
        return self._shards

    def gather(self) -> None:
        """Wait until all shards run."""
        ready = [handle.ready.remote() for handle in self.handles]
        self.pids = dict(enumerate(get(ready, self._settings.start_patience)))

    def pull(self) -> Tensors:
        """Return the current parameters, then buffers."""
        parts = self._ask(lambda shard: shard.pull.remote(), self._get)
        return self._layout.join([unpack(arrays) for _, arrays in parts])

    def count(self, pushed: Pushed) -> None:
        """Add a gradient, which its worker has pushed to all shards, to the next update."""
        found = self._ask(lambda shard: shard.count.remote(*pushed.key), self._get)
        self._counted.append(pushed)
        for shard in np.flatnonzero(np.logical_not(found)).tolist():
            self._count_again(shard, pushed)

    def update(self) -> None:
        """Apply the counted gradients."""
        version = self.version + 1
        keep = version % self._settings.keep_every == 0
        states = self._ask(
            lambda shard: shard.update.options(num_returns=2).remote(keep), self._get_state
        )
        self.version = version
        self._counted.clear()
        if keep:
            self._kept = [_Kept(version, state) for state in states]

    def replace_dead(self) -> None:
        """Replace all shards that do not answer."""
        self._ask(lambda shard: shard.ready.remote(), self._get)

    def close(self) -> None:
        """End all shards."""
        for handle in self._shards:
            kill(handle)
        self._shards = []

    def _ask(self, call: Callable[[Handle], Any], receive: Callable[[Any], Any]) -> list[Any]:
        """Call all shards at once; replace a dead one and call it again."""
        results = [call(handle) for handle in self.handles]
        for shard, result in enumerate(results):
            while True:
                try:
                    results[shard] = receive(result)
                    break
                except Gone as gone:
                    self._replace(shard, str(gone))
                    result = call(self.handles[shard])
        return results

    def _get(self, result: Ref) -> Any:
        return get(result, self._settings.patience)

    def _get_state(self, results: tuple[Ref, Ref]) -> Ref:
        """Wait until a shard has made its update and its state is on this node."""
        done, state = results
        self._get(done)
        fetch(state, self._settings.patience)
        return state

    def _replace(self, shard: int, why: str) -> None:
        """Restart a shard from its saved state."""
        kept = self._kept[shard]
        ready = False
        while not ready:
            self._restarts.add(f"shard {shard}", why)
            kill(self.handles[shard])
            handle = self.handles[shard] = self._makers[shard]()
            try:
                get(handle.load.remote(kept.state, self.version), self._settings.start_patience)
                self.pids[shard] = self._get(handle.ready.remote())
                ready = True
            except Gone as gone:
                why = str(gone)
        lost = self.version - kept.version
        self._note(shard, f"{why}; restarted from update {kept.version}, {lost} updates lost")
        for pushed in self._counted:
            self._count_again(shard, pushed)

    def _count_again(self, shard: int, pushed: Pushed) -> None:
        """Let a worker push a gradient again that a shard has lost or never received."""
        handle = self.handles[shard]
        try:
            again = self._get(pushed.source.push_again.remote(pushed.ticket, shard, handle))
            counted = again and self._get(handle.count.remote(*pushed.key))
        except Gone:
            counted = False
        if not counted:
            self._note(shard, f"has lost the gradient of worker {pushed.worker}")

    def _note(self, shard: int, what: str) -> None:
        self._faults.note(f"shard {shard}", self.version, what)


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
    """Evaluates the parameters of the shards in this process."""

    def __init__(self, replica: Replica, server: RayServer) -> None:
        self._replica = replica
        self._server = server

    @property
    def parameters(self) -> list[torch.Tensor]:
        return self._server.pull()

    def evaluate(self) -> Evaluation:
        return self._replica.evaluate(self._server.pull())
