"""Starting an experiment on Ray."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager

import torch

from evenstep.clusters.cluster import Cluster
from evenstep.core.arrays import Ints
from evenstep.core.trainer import TrainInBackground
from evenstep.engines.experiment import Experiment
from evenstep.engines.learner import usual_samples
from evenstep.engines.local_samples import LocalSamples
from evenstep.engines.on_ray.calls import Gone, Handle, keep, start_actor
from evenstep.engines.on_ray.clock import Clock
from evenstep.engines.on_ray.crew import Crew
from evenstep.engines.on_ray.engine import RayEngine, Watcher
from evenstep.engines.on_ray.faults import Faults
from evenstep.engines.on_ray.moving import Moving
from evenstep.engines.on_ray.parts import Divisible
from evenstep.engines.on_ray.server import RayServer
from evenstep.engines.on_ray.session import ray_session
from evenstep.engines.on_ray.settings import RaySettings
from evenstep.engines.on_ray.worker_actor import WorkerActor
from evenstep.engines.optimizers import make_optimizer
from evenstep.engines.planners import BalancedPlanner
from evenstep.engines.replica import Replica
from evenstep.engines.run import Run
from evenstep.engines.samples import Samples
from evenstep.engines.sharding import Layout
from evenstep.errors import EngineFailed, InvalidSetting
from evenstep.schemes import FlexRR, Scheme
from evenstep.workloads.workload import Evaluation, Workload

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
    """Start an experiment on Ray; the run that it gives can be advanced until this is left.

    >>> from evenstep.clusters.scenarios import make_scenario
    >>> from evenstep.workloads.digits import softmax_digits
    >>> cluster = make_scenario("G")
    >>> with ray_run(Experiment(), cluster, softmax_digits()) as run:  # doctest: +SKIP
    ...     for progress in run.advance(updates=100):
    ...         print(progress)
    """
    scheme = _scheme(experiment, cluster)
    if isinstance(samples, LocalSamples):
        experiment.check_local(samples, scheme, cluster.num_workers)
        if not isinstance(workload, Divisible):
            raise InvalidSetting(
                f"workers on Ray can hold partitions of samples that are rows of arrays, "
                f"got {workload.name}"
            )
    # The first is for the server to start with and to evaluate, and is this process's own.
    replica = Replica(workload, experiment.seed)
    sizes = [parameter.numel() for parameter in replica.parameters]
    layout = Layout.of(sizes, len(replica.buffers), experiment.num_shards)
    clock = Clock(settings.scale or 1.0)
    faults = Faults(clock)
    with ray_session(settings.address, num_cpus=cluster.num_workers):
        server = RayServer(
            layout,
            [*replica.parameters, *replica.buffers],
            make_optimizer(experiment.optimizer),
            scheme.num_counted,
            scheme.synchronous,
            settings,
            faults,
        )
        moving = _moving(workload, samples, settings)
        crew = _crew(experiment, cluster, workload, settings, moving)
        if moving is not None and isinstance(samples, LocalSamples):
            samples.move_by(lambda after: _moved(moving, crew, server, faults, after))
        with closing(server), closing(crew), closing(TrainInBackground()) as trainer:
            _gather(server, crew, settings)
            engine = RayEngine(
                cluster,
                BalancedPlanner(experiment.setup.balancer(cluster, trainer)),
                scheme,
                samples or usual_samples(workload, scheme, cluster.num_workers, experiment.seed),
                crew,
                server,
                settings,
                clock,
                faults,
                experiment.weighted,
                watch,
            )
            yield Run(engine, _Evaluator(replica, server), experiment.evaluate_every)


def _scheme(experiment: Experiment, cluster: Cluster) -> Scheme:
    scheme = experiment.make_scheme(cluster)
    if isinstance(scheme, FlexRR):
        raise InvalidSetting(
            f"scheme on Ray must be bsp, asp or ssp, got {experiment.scheme!r}: its workers hand "
            f"samples over in the middle of a gradient, which the virtual engine can do"
        )
    return scheme


def _moving(workload: Workload, samples: Samples | None, settings: RaySettings) -> Moving | None:
    if not (isinstance(samples, LocalSamples) and isinstance(workload, Divisible)):
        return None
    return Moving(workload, samples.partitions, settings.patience)


def _moved(
    moving: Moving, crew: Crew, server: RayServer, faults: Faults, after: Sequence[Ints]
) -> bool:
    moved = moving.move(crew.handles, after)
    if not moved:
        what = "was called off, as a worker is gone; it is tried again at the next boundary"
        faults.note("migration", server.version, what)
    return moved


def _crew(
    experiment: Experiment,
    cluster: Cluster,
    workload: Workload,
    settings: RaySettings,
    moving: Moving | None,
) -> Crew:
    kept = keep(workload) if moving is None else moving.workload

    def start(worker: int) -> Handle:
        return start_actor(
            WorkerActor,
            worker,
            kept,
            experiment.seed,
            experiment.num_shards,
            settings.patience,
            *(() if moving is None else moving.own(worker)),
            num_cpus=1,
        )

    return Crew(start, cluster.num_workers, settings)


def _gather(server: RayServer, crew: Crew, settings: RaySettings) -> None:
    try:
        server.gather()
        crew.gather()
    except Gone as gone:
        raise EngineFailed(
            f"all shards and workers must start, but one {gone}; every worker takes a CPU of Ray's"
        ) from None


class _Evaluator:
    """Evaluates in this process what the shards hold."""

    def __init__(self, replica: Replica, server: RayServer) -> None:
        self._replica = replica
        self._server = server

    @property
    def parameters(self) -> list[torch.Tensor]:
        return self._server.pull()

    def evaluate(self) -> Evaluation:
        return self._replica.evaluate(self._server.pull())
