"""A comparison: trains the same workload under several schemes, on the same cluster and noise.

>>> from evenstep.simulator.clusters.scenarios import make_scenario
>>> import numpy as np
>>> cluster = make_scenario("G", noisy=False)
>>> labels = np.arange(20) % 10
>>> fast, *_, slow = make_partitions("by_speed", labels, cluster, seed=0)
>>> sorted(set(labels[fast].tolist())), sorted(set(labels[slow].tolist()))
([0, 1, 2, 3, 4], [5, 6, 7, 8, 9])
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from evenstep.core import Ints
from evenstep.core.short_form import construct, parse_spec
from evenstep.errors import InvalidSetting
from evenstep.simulator.clusters.backups import even_speeds, make_with_backups
from evenstep.simulator.clusters.cluster import Cluster
from evenstep.simulator.clusters.registry import make_cluster
from evenstep.simulator.engine.comparison_figures import ComparisonFigures, figures_of
from evenstep.simulator.engine.experiment import Experiment
from evenstep.simulator.engine.flexrr_iteration import sequential
from evenstep.simulator.engine.registry import VIRTUAL, Engine
from evenstep.simulator.engine.run import Progress, Run
from evenstep.simulator.engine.scheme_specs import SchemeSpec
from evenstep.simulator.engine.simulation import Setup, needs_predictor
from evenstep.simulator.workloads.class_partitions import partition_by_speed, partition_dirichlet

if TYPE_CHECKING:
    from evenstep.simulator.engine.samples import Samples
    from evenstep.simulator.workloads.workload import Workload


MOST_UPDATES = 2000
"""Default limit of the updates that a scheme may make to reach the target."""


@dataclass(frozen=True)
class Comparison:
    """The settings of a comparison; the run of a scheme and seed does not depend on the others."""

    cluster: str
    """In short form, as `make_cluster` reads it."""
    workload: Workload | None = None
    """None: timing-only."""
    model: str | None = None
    """The name of the workload; Cluster-A uses the times of this model if it has them."""
    engine: Engine = VIRTUAL
    num_workers: int | None = None
    total: int | None = None
    """X; None: that of the cluster."""
    noisy: bool = True
    optimizer: str = "sgd"
    predictor: str | None = None
    """Of LB-BSP, unless the scheme names one."""
    partition: str | None = None
    """The skew of local data, in short form; None: workers share all data."""
    num_shards: int = 1
    target: float | None = None
    """The accuracy to reach."""
    iterations: int | None = None
    """Updates of every run; None: until it reaches the target, or the cluster's default."""
    evaluate_every: int = 5

    def __post_init__(self) -> None:
        if self.workload is None:
            for name in ("target", "partition"):
                if getattr(self, name) is not None:
                    raise InvalidSetting(f"a {name} goes with a workload, got none")

    def make_cluster(self, seed: int, contender: SchemeSpec | None = None) -> Cluster:
        """Make the cluster of a seed with the changes that a contender needs."""
        how = (self.num_workers, self._conditions_for, seed, self.noisy, self.model)
        cluster = make_cluster(self.cluster, *how)
        num_counted = cluster.num_workers
        if contender is not None and contender.redundant:
            cluster = make_with_backups(self.cluster, contender.backups, contender.like, *how)
        if self.total is not None:
            cluster = _resized(cluster, self.total, num_counted)
        return sequential(cluster) if contender is not None and contender.sequential else cluster

    def check(self, contender: SchemeSpec, seed: int) -> None:
        """Raise the errors that starting the run would raise."""
        cluster = self.make_cluster(seed, contender)
        self.engine.check(self._experiment(contender, cluster, seed), cluster, self.workload)
        self._samples(cluster, seed)

    def session(self, contenders: Sequence[SchemeSpec], seed: int) -> AbstractContextManager[None]:
        """Return a context that holds the resources shared by all runs."""
        most = max(self.make_cluster(seed, contender).num_workers for contender in contenders)
        return self.engine.session(most)

    def run(
        self, contender: SchemeSpec, seed: int, watch: Callable[[Progress], None]
    ) -> ComparisonFigures:
        """Run one contender and return its figures."""
        cluster = self.make_cluster(seed, contender)
        with self._start(contender, cluster, seed) as run:
            stop_at = self.target if self.iterations is None else None
            for progress in run.advance(self.num_updates(cluster), stop_at):
                watch(progress)
            return figures_of(run, self.target, self.scored_from(cluster))

    def times(self, contender: SchemeSpec, seed: int, until: float) -> list[float]:
        """Return the completion times of updates, up to the first one after `until` seconds."""
        with self._start(contender, self.make_cluster(seed, contender), seed) as run:
            # The number of updates in that time is not known in advance.
            for progress in run.advance(sys.maxsize):
                if progress.time >= until:
                    break
            return run.times

    def num_updates(self, cluster: Cluster) -> int:
        """Return the number of updates of a run, or its limit for reaching the target."""
        if self.iterations is not None:
            return self.iterations
        return cluster.iterations if self.target is None else MOST_UPDATES

    def scored_from(self, cluster: Cluster) -> int:
        """Return the first update that counts in per-update times; predictors learn before it."""
        fixed = self.iterations is not None or self.target is None
        return cluster.score_from if fixed and self.num_updates(cluster) > cluster.score_from else 0

    def setup(self, contender: SchemeSpec, cluster: Cluster) -> Setup:
        """Return the policy and the predictor of a contender."""
        predictor = contender.predictor
        if predictor is None and needs_predictor(contender.policy or cluster.policy):
            predictor = self.predictor
        return Setup.of(cluster, contender.policy, predictor, delay=0)

    @property
    def _conditions_for(self) -> int | None:
        """The number of iterations for which the cluster needs conditions."""
        if self.iterations is None and self.target is not None:
            return MOST_UPDATES
        return self.iterations

    def _start(
        self, contender: SchemeSpec, cluster: Cluster, seed: int
    ) -> AbstractContextManager[Run]:
        return self.engine.start(
            self._experiment(contender, cluster, seed),
            cluster,
            self.workload,
            self._samples(cluster, seed),
        )

    def _experiment(self, contender: SchemeSpec, cluster: Cluster, seed: int) -> Experiment:
        scheme = contender.scheme
        if contender.redundant:
            scheme += f":backups={cluster.num_workers - self.make_cluster(seed).num_workers}"
        return Experiment(
            scheme,
            self.setup(contender, cluster),
            self.optimizer,
            seed,
            contender.weighted,
            self.num_shards,
            self.evaluate_every,
        )

    def _samples(self, cluster: Cluster, seed: int) -> Samples | None:
        if self.partition is None or self.workload is None:
            return None
        # Imported here, so that a timing-only comparison needs no torch.
        from evenstep.simulator.engine.samples import WorkerStreams

        partitions = make_partitions(self.partition, self.workload.labels, cluster, seed)
        return WorkerStreams.of_partitions(partitions, seed)


def _resized(cluster: Cluster, total: int, num_counted: int) -> Cluster:
    """Return the cluster with this total; backups get as many samples in addition."""
    n = cluster.num_workers
    if n != num_counted and total % num_counted:
        raise InvalidSetting(
            f"with backups the total must be a multiple of the {num_counted} workers, got {total}"
        )
    return replace(cluster, total=total * n // num_counted)


def make_partitions(spec: str, labels: Ints, cluster: Cluster, seed: int) -> list[Ints]:
    """Return the samples that each worker of a cluster holds; `spec` is in short form."""
    name, settings = parse_spec(spec)
    if name not in PARTITIONS:
        raise InvalidSetting(f"partition must be one of {', '.join(PARTITIONS)}, got {name!r}")
    return construct(PARTITIONS[name], name, settings, labels, cluster, seed)


def _by_speed(labels: Ints, cluster: Cluster, seed: int) -> list[Ints]:
    return partition_by_speed(labels, even_speeds(cluster), seed)


def _dirichlet(labels: Ints, cluster: Cluster, seed: int, alpha: float = 0.5) -> list[Ints]:
    return partition_dirichlet(labels, cluster.num_workers, alpha, seed)


PARTITIONS: dict[str, Callable[..., list[Ints]]] = {
    "by_speed": _by_speed,
    "dirichlet": _dirichlet,
}
