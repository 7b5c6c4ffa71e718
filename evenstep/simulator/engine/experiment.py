"""An experiment: a scheme with a policy, and the settings of training."""

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
    """The settings of a run on a cluster. LB-BSP is `bsp` with a balancing policy."""

    scheme: str = "bsp"
    """In short form, as `make_scheme` reads it."""
    setup: Setup = EVEN
    """The policy and its predictor; only synchronous schemes support others than `even`."""
    optimizer: str = "sgd"
    """In short form, as `make_optimizer` reads it, with the learning rate of BSP."""
    seed: int = 0
    """Of the initial parameters and the order of samples."""
    weighted: bool = True
    """Whether gradients are weighted by batch sizes, so that every sample counts the same."""
    num_shards: int = 1
    evaluate_every: int = 10
    """Updates between two evaluations."""

    def start(
        self, cluster: Cluster, workload: Workload | None = None, samples: Samples | None = None
    ) -> Run:
        """Return a new run; without a workload it is timing-only.

        `samples` replaces the scheme's default assignment of samples to workers. It holds the
        progress of a run, so it must not be shared between runs.

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
        """Return the scheme for a cluster; raise InvalidSetting if it cannot run the policy."""
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
        # Imported here, so that a run without gradients needs no torch.
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
