"""An experiment: a scheme with a policy, and how the model is trained under it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from evenstep.errors import InvalidSetting
from evenstep.simulator.clusters.cluster import Cluster
from evenstep.simulator.engine.local_samples import LocalSamples
from evenstep.simulator.engine.run import Run
from evenstep.simulator.engine.simulation import Setup
from evenstep.simulator.engine.virtual import VirtualEngine
from evenstep.simulator.schemes import Scheme, make_scheme

if TYPE_CHECKING:
    from evenstep.simulator.engine.learner import WorkloadLearner
    from evenstep.simulator.engine.samples import Samples
    from evenstep.simulator.workloads.workload import Workload

EVEN = Setup("even")


@dataclass(frozen=True)
class Experiment:
    """What to run on a cluster in virtual time. LB-BSP is `bsp` with a policy that balances."""

    scheme: str = "bsp"
    """In short form, as `make_scheme` reads it."""
    setup: Setup = EVEN
    """The policy and its predictor; only the BSP kinds can have another than `even`."""
    optimizer: str = "sgd"
    """In short form, as `make_optimizer` reads it; its learning rate is that of BSP."""
    seed: int = 0
    """Of the parameters at the beginning, and of the order of the samples."""
    weighted: bool = True
    """Whether gradients are weighted by batch sizes, so that every sample counts the same."""
    num_shards: int = 1
    evaluate_every: int = 10
    """Updates between two evaluations."""

    def start(
        self, cluster: Cluster, workload: Workload | None = None, samples: Samples | None = None
    ) -> Run:
        """Return a run that is about to begin; without a workload it is timing-only.

        `samples` says who processes which, if not those that are usual for the scheme. Those of
        one run must not be used in another: they know how far it is.

        >>> from evenstep.simulator.clusters.scenarios import make_scenario
        >>> run = Experiment("asp").start(make_scenario("G", noisy=False))
        >>> [round(progress.time, 2) for progress in run.advance(updates=2)]
        [2.25, 3.25]
        """
        scheme = self.make_scheme(cluster)
        if isinstance(samples, LocalSamples):
            self.check_local(samples, scheme, cluster.num_workers)
        planner = self.setup.planner(cluster)
        learner = self._learner(cluster, workload, samples) if workload is not None else None
        at_boundary = samples.boundary if isinstance(samples, LocalSamples) else None
        engine = VirtualEngine(cluster, planner, lambda _: scheme, learner, at_boundary)
        return Run(engine, learner, self.evaluate_every)

    def make_scheme(self, cluster: Cluster) -> Scheme:
        """Return the scheme for a cluster, if it can be run with the policy."""
        scheme = make_scheme(self.scheme, cluster.num_workers)
        if not scheme.synchronous and self.setup.policy != "even":
            raise InvalidSetting(
                f"policy of {self.scheme} must be even: it has no iteration boundaries to plan "
                f"at, got {self.setup.policy!r}"
            )
        return scheme

    def check_local(self, samples: LocalSamples, scheme: Scheme, num_workers: int) -> None:
        """Raise InvalidSetting unless workers can train from these partitions under the scheme."""
        if len(samples.partitions) != num_workers:
            raise InvalidSetting(
                f"partitions must be one per worker ({num_workers}), got {len(samples.partitions)}"
            )
        if samples.rule is not None and not scheme.synchronous:
            raise InvalidSetting(
                f"samples must stay where they are under {self.scheme}: it has no iteration "
                f"boundaries to migrate at, got {samples.rule}"
            )

    def _learner(
        self, cluster: Cluster, workload: Workload, samples: Samples | None
    ) -> WorkloadLearner:
        # Here, so that a run without gradients needs no torch.
        from evenstep.simulator.engine.learner import WorkloadLearner
        from evenstep.simulator.engine.optimizers import make_optimizer

        return WorkloadLearner(
            workload,
            make_scheme(self.scheme, cluster.num_workers),
            make_optimizer(self.optimizer),
            cluster.num_workers,
            self.seed,
            self.weighted,
            self.num_shards,
            samples,
        )
