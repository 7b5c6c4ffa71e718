"""The settings that the demo shares with its worker processes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from evenstep.simulator.clusters.cluster import Cluster
from evenstep.simulator.clusters.scenarios import emulated_gpus

SCALE = 0.125
"""Scale of scenario G's times: the optimum is 137.5 ms, several times the computation."""

RUNS = {"plain": "off", "balanced": "balanced"}
"""The two runs, in their order, with the mode of their balancer."""

POLICY = "equal_finish"

SHARES = (0.4, 0.25, 0.15, 0.1)
"""Shares of a CPU of throttled workers, in their order: together less than two CPUs."""


@dataclass(frozen=True)
class DemoSettings:
    """One demo: the same training twice, on workers that are emulated or throttled."""

    folder: str
    """The folder of run logs, plot and report."""
    num_workers: int = 4
    epochs: int = 4
    seed: int = 0
    throttled: Sequence[str] = ()
    """A control group for each worker that throttles it; empty: speeds are emulated."""
    width: int = 8
    """Width of the net."""

    @property
    def source(self) -> str:
        return "measured" if self.throttled else "emulated"

    @property
    def result(self) -> Path:
        """The file for the result of the training, written by worker 0."""
        return Path(self.folder, "demo-result.json")

    @property
    def output(self) -> Path:
        """The file for the output of the workers."""
        return Path(self.folder, "demo-output.txt")

    def log(self, run: str) -> Path:
        """Return the run log of a run."""
        return Path(self.folder, f"demo-{run}.jsonl")

    @property
    def cluster(self) -> Cluster:
        """The emulated devices; throttled workers use only its total."""
        return emulated_gpus(self.num_workers, SCALE)

    @property
    def workers(self) -> Sequence[str]:
        """The names of the workers: their devices, or their shares of a CPU."""
        if self.throttled:
            return [f"{share:.0%} CPU" for share in SHARES[: self.num_workers]]
        return self.cluster.workers

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> DemoSettings:
        return cls(**json.loads(text))
