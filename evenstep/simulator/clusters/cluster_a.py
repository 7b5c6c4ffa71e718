"""Cluster-A: the paper's 16 GPU instances of four kinds, with measured curves (section 5.1).

docs/clusters.md lists which points are measured, derived, extrapolated or taken from a stand-in.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from evenstep.core import require_whole
from evenstep.errors import InvalidSetting
from evenstep.simulator.clusters.cluster import Cluster
from evenstep.simulator.clusters.curves import Curves, Points, table
from evenstep.simulator.clusters.noise import QUIET, Noise, WorkerNoise
from evenstep.simulator.clusters.scenarios import number_names
from evenstep.simulator.clusters.scheduled import Change, Scheduled
from evenstep.simulator.clusters.tables import read_table

KINDS = ("V100", "M60", "K80", "K520")
WORKERS = {4: KINDS, 12: KINDS[1:], 16: KINDS}
"""Number of workers: their kinds, in equal numbers (12: without the V100s, as in the paper)."""
BANDWIDTH = 10e9 / 8
"""Bytes per second: the paper's value for the M60s, assumed for all kinds."""
DEGRADED = 2.5e9 / 8
"""Bytes per second of the M60s after the paper's degradation."""
_NOISE = WorkerNoise(sigma=0.03, spike_probability=0.01, spike=(1.5, 3.0))
"""Assumed, as in scenario G."""


@dataclass(frozen=True)
class Model:
    """A model of the paper as trained on Cluster-A."""

    samples: int
    """Per worker, with plain BSP."""
    num_parameters: int

    def exchange_time(self, bandwidth: float) -> float:
        """Return the seconds in which a worker pulls and pushes one float32 per parameter."""
        return 2 * 4 * self.num_parameters / bandwidth


MODELS = {
    "inception_v3": Model(samples=32, num_parameters=23_817_352),
    "resnet32": Model(samples=128, num_parameters=464_154),
    "cifarnet": Model(samples=128, num_parameters=1_068_298),
}


@dataclass(frozen=True)
class Device:
    """One kind of GPU with one model."""

    curve: Points
    cap: int
    """x^o: the largest batch size in the table."""


def read_device(model: str, kind: str) -> Device:
    """Return the curve and the cap of a kind from the bundled table.

    >>> read_device("inception_v3", "K520").curve
    ((0.0, 0.273836), (16.0, 1.072304), (32.0, 1.870772))
    """
    points = [
        (float(row["batch_size"]), float(row["seconds"]))
        for row in read_table("cluster_a")
        if (row["model"], row["gpu"]) == (model, kind)
    ]
    return Device(table(points), int(points[-1][0]))


def read_measured(model: str) -> str:
    """Return which net was measured for a model: the model or its stand-in.

    >>> read_measured("resnet32")
    'ResNet18 at 32 px'
    """
    row = next(row for row in read_table("cluster_a") if row["model"] == model)
    return f"{row['measured_model']} at {row['image_size']} px"


@dataclass(frozen=True)
class ClusterA:
    """Cluster-A with 16, 12 or 4 workers that train a model.

    >>> cluster = ClusterA(workers=4).make(noisy=False)
    >>> cluster.optimum(cluster.conditions(0, now=0.0))
    array([102,  19,   6,   1])
    """

    workers: int = 16
    model: str = "inception_v3"
    degrade_at: int | None = None
    """The iteration at which the M60s drop to a quarter of their bandwidth."""

    def __post_init__(self) -> None:
        if self.workers not in WORKERS:
            known = ", ".join(map(str, WORKERS))
            raise InvalidSetting(f"workers of Cluster-A must be one of {known}, got {self.workers}")
        if self.model not in MODELS:
            known = ", ".join(MODELS)
            raise InvalidSetting(f"model of Cluster-A must be one of {known}, got {self.model!r}")
        if self.degrade_at is not None:
            require_whole("degrade_at of Cluster-A", self.degrade_at, least=0)

    def make(self, iterations: int | None = None, seed: int = 0, noisy: bool = True) -> Cluster:
        """Make the cluster for a run of `iterations`, by default 500."""
        alike = self.workers // len(WORKERS[self.workers])
        kinds = [kind for kind in WORKERS[self.workers] for _ in range(alike)]
        devices = [read_device(self.model, kind) for kind in kinds]
        model = MODELS[self.model]
        return Cluster(
            name=f"Cluster-A, {self.model} (times of {read_measured(self.model)})",
            workers=number_names(kinds),
            curves=Curves.of([device.curve for device in devices]),
            cap=np.array([device.cap for device in devices]),
            environment=Scheduled(
                communication=np.full(self.workers, model.exchange_time(BANDWIDTH)),
                noise=Noise.of([_NOISE if noisy else QUIET] * self.workers, seed),
                changes=self._changes(kinds),
            ),
            total=model.samples * self.workers,
            iterations=500 if iterations is None else iterations,
            changes_at=self.degrade_at,
            bandwidth=np.full(self.workers, BANDWIDTH),
        )

    def _changes(self, kinds: list[str]) -> list[Change]:
        if self.degrade_at is None:
            return []
        m60s = np.flatnonzero(np.array(kinds) == "M60")
        slower = MODELS[self.model].exchange_time(DEGRADED)
        return [Change(self.degrade_at, m60s, communication=slower)]
