"""One training on local partitions (section 3.5): who holds what, and what came out."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from evenstep.core import UNLIMITED, Floats, Ints, Limits
from evenstep.partitions import (
    MigrationRule,
    deal_by_class,
    deal_mixed,
    plan_migration,
    target_sizes,
)
from evenstep.simulator.clusters.cluster import Cluster
from evenstep.simulator.clusters.curves import Curves, linear
from evenstep.simulator.clusters.noise import QUIET, Noise
from evenstep.simulator.clusters.scheduled import Scheduled
from evenstep.simulator.engine.experiment import Experiment
from evenstep.simulator.engine.local_samples import LocalSamples
from evenstep.simulator.engine.run import Run
from evenstep.simulator.engine.simulation import Setup

if TYPE_CHECKING:
    from evenstep.simulator.workloads.workload import Workload

CASES = ("i.i.d.", "skewed", "skewed, migration", "skewed, importance weights")
PAPERS_SIZES = (64, 96, 128, 160, 192)
DIGITS_SIZES = tuple(size // 8 for size in PAPERS_SIZES)
EVALUATIONS = 40
LATE = EVALUATIONS // 5
"""Evaluations at the end of which the mean is taken: a single one has its own noise."""


@dataclass(frozen=True, eq=False)
class Study:
    """The workload, the workers and the length of the trainings."""

    workload: Workload
    batch_sizes: Sequence[int] = DIGITS_SIZES
    updates: int = 400
    optimizer: str = "sgd:learning_rate=0.1"
    threshold: float = 2.0
    """How far one partition's traversal count may be ahead before samples migrate."""
    stratified: bool = False
    """Whether migrations mix classes; otherwise any samples of a giver move."""

    def samples(self, case: str, seed: int) -> LocalSamples:
        """Return who holds what at the beginning, and what is done about it."""
        num_workers, labels = len(self.batch_sizes), self.workload.labels
        if case == "i.i.d.":
            partitions = deal_mixed(self.workload.num_samples, num_workers, seed)
        else:
            partitions = deal_by_class(labels, num_workers)
        return LocalSamples(
            partitions,
            rule=MigrationRule(self.threshold) if case == "skewed, migration" else None,
            importance=case == "skewed, importance weights",
            labels=labels if self.stratified else None,
            seed=seed,
        )

    def cluster(self) -> Cluster:
        """Return workers that finish their batches together, a second each."""
        n = len(self.batch_sizes)
        return Cluster(
            name="verification",
            workers=[f"w{i}" for i in range(n)],
            curves=Curves.of([linear(float(size)) for size in self.batch_sizes]),
            cap=np.full(n, UNLIMITED),
            environment=Scheduled(np.zeros(n), Noise.of([QUIET] * n, seed=0)),
            total=sum(self.batch_sizes),
            iterations=self.updates,
        )

    def fewest(self, sizes: Ints) -> int:
        """Return how many samples have to move at least for partitions to follow batch sizes."""
        targets = target_sizes(int(sizes.sum()), self.batch_sizes, Limits.of(len(sizes)))
        return plan_migration(sizes, targets).num_moved


@dataclass(frozen=True, eq=False)
class Result:
    """The figures of one run."""

    case: str
    seed: int
    updates: Ints
    """After how many updates the model was evaluated."""
    accuracy: Floats
    loss: Floats
    migrated_at: Sequence[int]
    """Updates after which samples moved."""
    num_moved: int
    fewest: int
    gap: float
    """The largest that the gap of traversal counts was at any boundary."""

    @property
    def late(self) -> float:
        """Accuracy at the end, the mean of several evaluations."""
        return float(self.accuracy[-LATE:].mean())

    def accuracy_after(self, updates: float) -> float:
        return float(np.interp(updates, self.updates, self.accuracy))

    def reached(self, target: float) -> int | None:
        """Return the updates to an accuracy."""
        above = np.flatnonzero(self.accuracy >= target)
        return int(self.updates[above[0]]) if len(above) else None


def train(study: Study, case: str, seed: int, on_ray: bool = False) -> Result:
    """Train one case with one seed: of the net, of the orders, and of what moves."""
    samples = study.samples(case, seed)
    fewest = study.fewest(samples.sizes)
    setup = Setup("static:shares=" + "/".join(map(str, study.batch_sizes)))
    every = max(1, study.updates // EVALUATIONS)
    experiment = Experiment("bsp", setup, study.optimizer, seed, evaluate_every=every)
    gap = 0.0
    with _started(experiment, study, samples, on_ray) as run:
        for _ in run.advance(study.updates):
            gap = max(gap, samples.traversals.gap)
    evaluations = [point.evaluation for point in run.points]
    return Result(
        case,
        seed,
        np.array([point.updates for point in run.points]),
        np.array([evaluation.accuracy for evaluation in evaluations]),
        np.array([evaluation.loss for evaluation in evaluations]),
        [int(np.searchsorted(run.times, m.end, "right")) for m in samples.migrations],
        sum(migration.plan.num_moved for migration in samples.migrations),
        fewest,
        max([gap, *(migration.gap for migration in samples.migrations)]),
    )


def _started(
    experiment: Experiment, study: Study, samples: LocalSamples, on_ray: bool
) -> AbstractContextManager[Run]:
    if on_ray:
        from evenstep.simulator.ray_engine.start import ray_run

        return ray_run(experiment, study.cluster(), study.workload, samples=samples)
    return nullcontext(experiment.start(study.cluster(), study.workload, samples))
