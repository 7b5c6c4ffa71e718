"""What the demo and its worker processes agree on."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from evenstep.simulator.clusters.cluster import Cluster
from evenstep.simulator.clusters.scenarios import emulated_gpus

SCALE = 0.125
"""Of scenario G's times: the optimum is 137.5 ms, several times what the computation needs."""

RUNS = {"plain": "off", "balanced": "balanced"}
"""The two runs, in their order, with the mode of their balancer."""

POLICY = "equal_finish"

SHARES = (0.4, 0.25, 0.15, 0.1)
"""Of a CPU, for each worker in turn where they are throttled: together less than two."""


@dataclass(frozen=True)
class DemoSettings:
    """One demo: the same training twice, on workers that are unequal in one of two ways."""

    folder: str
    """Where run logs, plot and report go."""
    num_workers: int = 4
    epochs: int = 4
    seed: int = 0
    throttled: Sequence[str] = ()
    """A control group for each worker that really slows it down; empty: speeds are emulated."""
    width: int = 8
    """Of the net."""

    @property
    def source(self) -> str:
        return "measured" if self.throttled else "emulated"

    @property
    def result(self) -> Path:
        """Where worker 0 says what came out of the training."""
        return Path(self.folder, "demo-result.json")

    @property
    def output(self) -> Path:
        """Where everything goes that the workers print."""
        return Path(self.folder, "demo-output.txt")

    def log(self, run: str) -> Path:
        """Return the run log of a run."""
        return Path(self.folder, f"demo-{run}.jsonl")

    @property
    def cluster(self) -> Cluster:
        """The emulated devices; of throttled workers, only the total is theirs too."""
        return emulated_gpus(self.num_workers, SCALE)

    @property
    def workers(self) -> Sequence[str]:
        """The names of the workers, which say what slows them down."""
        if self.throttled:
            return [f"{share:.0%} CPU" for share in SHARES[: self.num_workers]]
        return self.cluster.workers

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> DemoSettings:
        return cls(**json.loads(text))
