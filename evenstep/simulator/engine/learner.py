"""The learner of the virtual engine: real gradients of a real model, when the engine says so."""

from __future__ import annotations

from evenstep.core import Ints
from evenstep.core.gradient_weight import gradient_weight
from evenstep.simulator.engine.local_samples import counted
from evenstep.simulator.engine.optimizers import Optimizer
from evenstep.simulator.engine.parameter_server import ParameterServer, Tensors
from evenstep.simulator.engine.replica import Replica
from evenstep.simulator.engine.samples import OwnStreams, Samples, SharedOrder
from evenstep.simulator.schemes import Scheme
from evenstep.simulator.workloads.workload import Evaluation, Workload


class WorkloadLearner:
    """Trains a workload for all workers, with one model and a parameter server.

    A worker that starts keeps the parameters that it pulled; its gradient is computed at them when
    it arrives, so that one that is abandoned costs nothing.
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
        """`num_workers` is all that run, backups included."""
        self._replica = Replica(workload, seed)
        self._server = ParameterServer(
            self._replica.parameters,
            self._replica.buffers,
            optimizer,
            scheme.num_counted,
            scheme.synchronous,
            num_shards,
        )
        self._samples = samples or usual_samples(workload, scheme, num_workers, seed)
        self._num_workers = num_workers
        self._weighted = weighted
        self._synchronous = scheme.synchronous
        self._pulled: list[Tensors | None] = [None] * num_workers

    @property
    def parameters(self) -> Tensors:
        """Parameters, then buffers, as they are now; they must not be changed."""
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
        factor = self._gradient_weight(worker, sizes)
        # The server of ASP and SSP has the scheme's weight, 1/n, in its learning rate.
        self._server.push(gradients, factor * weight if self._synchronous else factor)

    def update(self) -> None:
        self._server.update()

    def _gradient_weight(self, worker: int, sizes: Ints) -> float:
        """Return n x_i / X; unweighted 1, so that a sample of a small batch counts for more."""
        if not self._weighted:
            return 1.0
        counts = counted(self._samples, sizes)
        return gradient_weight(int(counts[worker]), int(counts.sum()), self._num_workers)

    def evaluate(self) -> Evaluation:
        """Return how good the model is with the parameters of now."""
        return self._replica.evaluate(self._server.pull())


def usual_samples(workload: Workload, scheme: Scheme, num_workers: int, seed: int) -> Samples:
    """Return the shared order for the BSP kinds, and streams of their own for the others."""
    if scheme.synchronous:
        return SharedOrder(workload.num_samples, seed)
    return OwnStreams.of_shares(workload.num_samples, num_workers, seed)
