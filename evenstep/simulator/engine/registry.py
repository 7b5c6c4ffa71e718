"""Engines by name, and the meaning of their seconds."""

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
"""The meaning of each clock's seconds; every figure is labelled with it."""
EMULATED_SCALE = 0.05
"""Default real seconds per second of an emulated cluster."""


class Engine(Protocol):
    """A way to run experiments."""

    @property
    def clock(self) -> str:
        """One of `SECONDS`."""
        ...

    def check(self, experiment: Experiment, cluster: Cluster, workload: Workload | None) -> None:
        """Raise InvalidSetting if the experiment cannot be started."""
        ...

    def session(self, num_workers: int) -> AbstractContextManager[None]:
        """Return a context that holds the resources shared by runs of up to `num_workers`."""
        ...

    def start(
        self,
        experiment: Experiment,
        cluster: Cluster,
        workload: Workload | None,
        samples: Samples | None,
    ) -> AbstractContextManager[Run]:
        """Start an experiment; leaving the context releases its resources."""
        ...


@dataclass(frozen=True)
class Virtual:
    """The virtual engine: real gradients or none, in simulated time."""

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
    """The Ray engine: workers and shards as Ray actors; needs the extra `ray`."""

    address: str | None = None
    """Of the Ray cluster to use; None starts a local one for the session."""
    scale: float | None = EMULATED_SCALE
    """Real seconds per second of the emulated cluster; None: workers run at their real speed."""

    @property
    def clock(self) -> str:
        return "real" if self.scale is None else "emulated"

    def check(self, experiment: Experiment, cluster: Cluster, workload: Workload | None) -> None:
        if workload is None:
            raise InvalidSetting("a workload is needed on Ray: only virtual time runs without one")
        if experiment.scheme.partition(":")[0] == "flexrr":
            raise InvalidSetting(
                f"scheme on Ray must not be {experiment.scheme}: its workers move samples in the "
                f"middle of a gradient, which only the virtual engine supports"
            )
        if experiment.setup.policy == ORACLE:
            raise InvalidSetting(
                "policy on Ray must not be oracle: the noise of the coming iteration is known in "
                "virtual time only"
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
