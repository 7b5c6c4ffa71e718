"""Engines by name: where experiments run, and what their seconds are."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from evenstep.errors import InvalidSetting
from evenstep.simulator.clusters.cluster import Cluster
from evenstep.simulator.engine.experiment import Experiment
from evenstep.simulator.engine.run import Run
from evenstep.simulator.engine.simulation import ORACLE

if TYPE_CHECKING:
    from evenstep.simulator.engine.samples import Samples
    from evenstep.simulator.workloads.workload import Workload

SECONDS = {
    "virtual": "virtual time, simulated",
    "emulated": "emulated, the cluster's seconds",
    "real": "real seconds",
}
"""What the seconds of a clock are: every figure is labelled with it."""
EMULATED_SCALE = 0.05
"""Real seconds for one of an emulated cluster, unless the user says otherwise."""


class Engine(Protocol):
    """A way to run experiments."""

    @property
    def clock(self) -> str:
        """One of `SECONDS`."""
        ...

    def check(self, experiment: Experiment, cluster: Cluster, workload: Workload | None) -> None:
        """Raise InvalidSetting where it could not be started."""
        ...

    def session(self, num_workers: int) -> AbstractContextManager[None]:
        """Hold what runs of up to so many workers can share, while this is entered."""
        ...

    def start(
        self,
        experiment: Experiment,
        cluster: Cluster,
        workload: Workload | None,
        samples: Samples | None,
    ) -> AbstractContextManager[Run]:
        """Start an experiment; what it takes is let go of when this is left."""
        ...


@dataclass(frozen=True)
class Virtual:
    """The virtual engine: real gradients or none, on a clock that only pretends to run."""

    clock = "virtual"

    def check(self, experiment: Experiment, cluster: Cluster, workload: Workload | None) -> None:
        experiment.make_scheme(cluster)
        experiment.setup.planner(cluster)

    def session(self, num_workers: int) -> AbstractContextManager[None]:
        return nullcontext()

    def start(
        self,
        experiment: Experiment,
        cluster: Cluster,
        workload: Workload | None,
        samples: Samples | None,
    ) -> AbstractContextManager[Run]:
        return nullcontext(experiment.start(cluster, workload, samples))


@dataclass(frozen=True)
class OnRay:
    """Workers and shards of the parameter server as Ray actors; needs the extra `ray`."""

    address: str | None = None
    """Of the Ray cluster to run on; None starts one here for the session."""
    scale: float | None = EMULATED_SCALE
    """Real seconds for one of the cluster's, whose times workers take; None: their own times."""

    @property
    def clock(self) -> str:
        return "real" if self.scale is None else "emulated"

    def check(self, experiment: Experiment, cluster: Cluster, workload: Workload | None) -> None:
        if workload is None:
            raise InvalidSetting("a workload is needed on Ray: only virtual time does without one")
        if experiment.scheme.partition(":")[0] == "flexrr":
            raise InvalidSetting(
                f"scheme on Ray must be another than {experiment.scheme}: its workers hand samples "
                f"over in the middle of a gradient, which only the virtual engine can do"
            )
        if experiment.setup.policy == ORACLE:
            raise InvalidSetting(
                "policy on Ray must be another than oracle: only in virtual time somebody knows "
                "the noise of the coming iteration"
            )
        experiment.make_scheme(cluster)
        experiment.setup.balancer(cluster)

    def session(self, num_workers: int) -> AbstractContextManager[None]:
        from evenstep.simulator.ray_engine.session import ray_session

        return ray_session(self.address, num_workers)

    def start(
        self,
        experiment: Experiment,
        cluster: Cluster,
        workload: Workload | None,
        samples: Samples | None,
    ) -> AbstractContextManager[Run]:
        from evenstep.simulator.ray_engine.ray_settings import RaySettings
        from evenstep.simulator.ray_engine.start import ray_run

        assert workload is not None, "checked"
        return ray_run(
            experiment, cluster, workload, RaySettings(self.address, self.scale), samples
        )


VIRTUAL = Virtual()

ENGINES: dict[str, Callable[..., Engine]] = {"virtual": Virtual, "ray": OnRay}
