"""Starts an experiment on Ray."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager

from evenstep.core import TrainInBackground
from evenstep.errors import EngineFailed, InvalidSetting
from evenstep.simulator.clusters.cluster import Cluster
from evenstep.simulator.engine.experiment import Experiment
from evenstep.simulator.engine.learner import default_samples
from evenstep.simulator.engine.local_samples import LocalSamples
from evenstep.simulator.engine.replica import Replica
from evenstep.simulator.engine.run import Run
from evenstep.simulator.engine.samples import Samples
from evenstep.simulator.ray_engine.calls import Gone
from evenstep.simulator.ray_engine.clock import Clock
from evenstep.simulator.ray_engine.engine import RayEngine, Watcher
from evenstep.simulator.ray_engine.faults import Faults
from evenstep.simulator.ray_engine.migration import check_divisible, make_migration, move_or_note
from evenstep.simulator.ray_engine.ray_settings import RaySettings
from evenstep.simulator.ray_engine.server import RayServer, ServerEvaluator, make_server
from evenstep.simulator.ray_engine.session import ray_session
from evenstep.simulator.ray_engine.workers import RayWorkers, make_workers
from evenstep.simulator.schemes import FlexRR, Scheme
from evenstep.simulator.workloads.workload import Workload

REAL = RaySettings()


@contextmanager
def ray_run(
    experiment: Experiment,
    cluster: Cluster,
    workload: Workload,
    settings: RaySettings = REAL,
    samples: Samples | None = None,
    watch: Watcher | None = None,
) -> Iterator[Run]:
    """Start an experiment on Ray; the run can be advanced inside the block.

    >>> from evenstep.simulator.clusters.scenarios import make_scenario
    >>> from evenstep.simulator.workloads.digits import softmax_digits
    >>> cluster = make_scenario("G")
    >>> with ray_run(Experiment(), cluster, softmax_digits()) as run:  # doctest: +SKIP
    ...     for progress in run.advance(updates=100):
    ...         print(progress)
    """
    scheme = _scheme(experiment, cluster)
    if isinstance(samples, LocalSamples):
        experiment.check_local(samples, scheme, cluster.num_workers)
    check_divisible(workload, samples)
    # This replica gives the server its initial parameters, and evaluates in this process.
    replica = Replica(workload, experiment.seed)
    clock = Clock(settings.scale or 1.0)
    faults = Faults(clock)
    with ray_session(settings.address, num_cpus=cluster.num_workers):
        server = make_server(
            replica, scheme, experiment.optimizer, experiment.num_shards, settings, faults
        )
        migration = make_migration(workload, samples, settings.patience)
        workers = make_workers(
            cluster.num_workers,
            workload,
            experiment.seed,
            experiment.num_shards,
            migration,
            settings,
        )
        if migration is not None and isinstance(samples, LocalSamples):
            samples.move_by(
                lambda after: move_or_note(
                    migration, workers.handles, faults, server.version, after
                )
            )
        with closing(server), closing(workers), closing(TrainInBackground()) as trainer:
            _gather(server, workers)
            engine = RayEngine(
                cluster,
                experiment.setup.planner(cluster, trainer),
                scheme,
                samples or default_samples(workload, scheme, cluster.num_workers, experiment.seed),
                workers,
                server,
                settings,
                clock,
                faults,
                experiment.weighted,
                watch,
            )
            yield Run(engine, ServerEvaluator(replica, server), experiment.evaluate_every)


def _scheme(experiment: Experiment, cluster: Cluster) -> Scheme:
    scheme = experiment.make_scheme(cluster)
    if isinstance(scheme, FlexRR):
        raise InvalidSetting(
            f"scheme on Ray must be bsp, asp or ssp, got {experiment.scheme!r}: its workers move "
            f"samples in the middle of a gradient, which only the virtual engine supports"
        )
    return scheme


def _gather(server: RayServer, workers: RayWorkers) -> None:
    try:
        server.gather()
        workers.gather()
    except Gone as gone:
        raise EngineFailed(
            f"all shards and workers must start, but one {gone}; every worker needs a CPU of Ray"
        ) from None
