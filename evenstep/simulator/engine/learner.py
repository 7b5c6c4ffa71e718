"""The learner of the virtual engine: computes real gradients of a real model."""

from __future__ import annotations

from evenstep.core import Ints
from evenstep.simulator.engine.local_samples import push_weight
from evenstep.simulator.engine.optimizers import Optimizer
from evenstep.simulator.engine.parameter_server import ParameterServer, Tensors
from evenstep.simulator.engine.replica import Replica
from evenstep.simulator.engine.samples import Samples, SharedOrder, WorkerStreams
from evenstep.simulator.schemes import Scheme
from evenstep.simulator.workloads.workload import Evaluation, Workload


class WorkloadLearner:
    """Trains a workload for all workers, with one model and a parameter server.

    A worker pulls parameters when it starts; its gradient is computed at them when it arrives, so
    an abandoned gradient costs nothing.
    """

    def __init__(
        self,
        workload: Workload,
        scheme: Scheme,
        optimizer: Optimizer,
        num_workers: int,
        seed: int = 0,
        weighted: bool = True,
        num_shards: int = 1,
        samples: Samples | None = None,
    ) -> None:
        """`num_workers` counts all workers, backups included."""
        self._replica = Replica(workload, seed)
        self._server = ParameterServer(
            self._replica.parameters,
            self._replica.buffers,
            optimizer,
            scheme.num_counted,
            scheme.synchronous,
            num_shards,
        )
        self._samples = samples or default_samples(workload, scheme, num_workers, seed)
        self._weighted = weighted
        self._synchronous = scheme.synchronous
        self._pulled: list[Tensors | None] = [None] * num_workers

    @property
    def parameters(self) -> Tensors:
        """The current parameters, then buffers; they must not be changed."""
        return self._server.pull()

    def pull(self, worker: int) -> None:
        self._pulled[worker] = self._server.pull()

    def push(self, worker: int, iteration: int, sizes: Ints, weight: float) -> None:
        pulled = self._pulled[worker]
        assert pulled is not None, worker
        self._pulled[worker] = None
        if sizes[worker] == 0:
            return
        samples = self._samples.deal(worker, iteration, sizes)
        gradients = self._replica.gradients(pulled, samples)
        factor = push_weight(self._samples, worker, sizes, self._weighted)
        # Under ASP and SSP the learning rate of the server includes the scheme's weight, 1/n.
        self._server.push(gradients, factor * weight if self._synchronous else factor)

    def update(self) -> None:
        self._server.update()

    def evaluate(self) -> Evaluation:
        """Evaluate the model with the current parameters."""
        return self._replica.evaluate(self._server.pull())


def default_samples(workload: Workload, scheme: Scheme, num_workers: int, seed: int) -> Samples:
    """Return the shared order for synchronous schemes, and a stream per worker for the others."""
    if scheme.synchronous:
        return SharedOrder(workload.num_samples, seed)
    return WorkerStreams.of_shares(workload.num_samples, num_workers, seed)
