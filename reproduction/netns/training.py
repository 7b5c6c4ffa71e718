"""The training of a run as its parameter server sees it, without sockets and clocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from evenstep.core import Floats, Ints, Reports
from evenstep.errors import Refused
from evenstep.simulator.clusters.cluster import Cluster
from evenstep.simulator.engine.optimizers import Sgd
from evenstep.simulator.engine.parameter_server import ParameterServer
from evenstep.simulator.engine.planners import BalancedPlanner
from evenstep.simulator.engine.replica import Replica
from evenstep.simulator.engine.samples import SharedOrder
from evenstep.simulator.engine.simulation import Setup
from evenstep.simulator.workloads.workload import Evaluation, Workload
from reproduction.netns.flat import pack, unpack

WORKLOAD = "mlp:width=156,dtype=float64"
"""93,680 bytes of parameters: there and back in 15 ms over a line of 100 Mbit/s, as in scenario G
at a tenth of its seconds. In 64-bit floats, so that what was trained can be compared closely."""
OPTIMIZER = Sgd(learning_rate=0.1)
SEED = 0
SCALE = 0.1
"""Real seconds for one of scenario G's."""


@dataclass(frozen=True, eq=False)
class Batch:
    """The work of a worker in an iteration."""

    samples: Ints
    computation: float
    """Seconds that the emulated device takes for them."""


NO_BATCH = Batch(np.empty(0, dtype=np.int64), 0.0)
"""The answer to a worker when the training is over."""


class Training:
    """Parameters, plans and samples, iteration by iteration."""

    def __init__(self, setup: Setup, cluster: Cluster, workload: Workload) -> None:
        self._cluster = cluster
        self._planner = BalancedPlanner(setup.balancer(cluster))
        self._replica = Replica(workload, SEED)
        self._server = ParameterServer(
            self._replica.parameters, self._replica.buffers, OPTIMIZER, cluster.num_workers
        )
        self._order = SharedOrder(workload.num_samples, SEED)
        self._batches: dict[int, Batch] = {}
        """The batches whose gradient has not arrived yet, by worker."""
        self.sizes: list[Ints] = []
        """x of each iteration begun."""
        self.times: list[Floats] = []
        """t of each iteration ended, in real seconds."""
        self.samples: list[Ints] = []
        """The samples whose gradients arrived, batch by batch."""

    def end(self, times: Sequence[float]) -> None:
        """End an iteration: apply all gradients, and record the time of each worker."""
        assert not self._batches, self._batches
        self._server.update()
        self.times.append(np.array(times))

    def begin(self) -> list[Batch]:
        """Begin an iteration: ask the policy, and deal the samples."""
        k = len(self.sizes)
        sizes = self._planner.sizes(self._reports(), self._cluster.conditions(k, 0.0))
        seconds = SCALE * self._cluster.curves.times_at(sizes)
        batches = [
            Batch(self._order.deal(worker, k, sizes), float(seconds[worker]))
            for worker in range(len(sizes))
        ]
        self._batches = dict(enumerate(batches))
        self.sizes.append(sizes)
        return batches

    def pull(self) -> bytes:
        """Return the parameters as they are now."""
        return pack(self._server.pull())

    def push(self, worker: int, gradient: bytes) -> None:
        """Add a gradient, which counts as much as the samples that it is of."""
        if worker not in self._batches:
            raise Refused("OUT_OF_TURN", f"worker {worker} must have a batch to push, got none")
        tensors = unpack(gradient, self._replica.parameters)
        samples = self._batches.pop(worker).samples
        # The server divides by the sum of these weights, which is X.
        self._server.push(tensors, float(len(samples)))
        self.samples.append(samples)

    def has_pushed(self, worker: int) -> bool:
        """Return whether a worker is through with its batch of this iteration."""
        return worker not in self._batches

    @property
    def parameters(self) -> list[torch.Tensor]:
        """As they are now; they must not be changed."""
        return self._server.pull()

    def evaluate(self) -> Evaluation:
        """Return how good the model is with the parameters of now."""
        return self._replica.evaluate(self._server.pull())

    def _reports(self) -> Reports:
        """Return what the workers say of the last iteration, if there was one."""
        silent = Reports.silent(len(self.sizes), self._cluster.num_workers)
        if not self.sizes:
            return silent
        sizes, times = self.sizes[-1], self.times[-1]
        memory = self._cluster.device_memory(sizes)
        return replace(silent, batch_sizes=sizes, times=times, device_memory=memory)
