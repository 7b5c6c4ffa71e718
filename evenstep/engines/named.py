"""Engines by name: each starts an experiment, and is imported when it is asked to."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

from evenstep.clusters.cluster import Cluster
from evenstep.engines.experiment import Experiment

if TYPE_CHECKING:
    from evenstep.engines.run import Run
    from evenstep.engines.samples import Samples
    from evenstep.workloads.workload import Workload

Start = Callable[
    [Experiment, Cluster, "Workload | None", "Samples | None"], AbstractContextManager["Run"]
]
"""Starts an experiment on a cluster, and clears up when its run is left."""


@dataclass(frozen=True)
class Engine:
    """A way to run experiments."""

    start: Start
    time: str
    """What its seconds are: every figure is labelled with it."""


def _virtual(
    experiment: Experiment, cluster: Cluster, workload: Workload | None, samples: Samples | None
) -> AbstractContextManager[Run]:
    return nullcontext(experiment.start(cluster, workload, samples))


ENGINES: dict[str, Engine] = {"virtual": Engine(_virtual, "virtual time, simulated")}
