"""`modern`: beyond the paper, a cluster of newer GPUs that is given as a cluster file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from evenstep.simulator.clusters.cluster import Cluster
from evenstep.simulator.clusters.file import load_cluster
from evenstep.simulator.engine.simulation import Setup, SimulationOutcome, simulate
from reproduction.experiment import Experiment, Progress, Settings, steps
from reproduction.network import Network, connect
from reproduction.result import Claim, Curve, Plot, Result, Row, Table
from reproduction.wording import of_seeds

OURS, ALG_2 = "equal_finish", ("stepwise:literal=true", "stepwise")
POLICIES = ("even", *ALG_2, OURS)
COMMUNICATIONS = {"10 Gbit/s": 1.0, "100 Gbit/s": 0.1}
"""Lines, the slow one first, and the part that they are of the file's communication time."""
_FILE = Path(__file__).parents[1] / "clusters" / "modern.toml"


def run(settings: Settings, progress: Progress) -> Result:
    """Run the policies over a slow and a fast line."""
    seeds = settings.choose((0,), (0, 1, 2))
    work = [(line, policy) for line in COMMUNICATIONS for policy in POLICIES]
    runs: dict[tuple[str, str], list[SimulationOutcome]] = {}
    clusters = [load_cluster(str(_FILE), seed) for seed in seeds]
    for line, policy in steps(work, progress):
        chosen = [_with_line(cluster, COMMUNICATIONS[line]) for cluster in clusters]
        runs[line, policy] = [
            simulate(cluster, Setup(policy), settings.choose(150, 300)) for cluster in chosen
        ]
    rows = [_row(line, policy, outcomes) for (line, policy), outcomes in runs.items()]
    over_bsp = {(row["line"], row["policy"]): row["iteration time / BSP"] for row in rows}
    return Result(
        [
            Table(
                "2 A100, 3 RTX 6000 and 3 T4, Inception-V3, 256 samples per iteration",
                "virtual",
                rows,
                "T4's curve is measured (PROFET); those of A100 and RTX 6000 are scaled by memory "
                "bandwidth from the V100's and T4's: assumed, not measured. Figures: "
                f"{of_seeds('medians', seeds)}.",
            )
        ],
        [
            Plot(
                "Iteration time over BSP's",
                "virtual",
                "",
                "share",
                [
                    Curve(line, POLICIES, [over_bsp[line, policy] for policy in POLICIES])
                    for line in COMMUNICATIONS
                ],
                bars=True,
            )
        ],
        _claims(over_bsp),
        seeds=list(seeds),
    )


def _claims(over_bsp: Mapping[tuple[str, str], float]) -> list[Claim]:
    ours = {line: over_bsp[line, OURS] for line in COMMUNICATIONS}
    slow, fast = ours
    ahead = {
        (line, policy): over_bsp[line, policy]
        for line in COMMUNICATIONS
        for policy in ALG_2
        if over_bsp[line, policy] < ours[line]
    }
    said = ", ".join(f"{over:.3f} over {line}" for line, over in ours.items())
    return [
        Claim(
            "gain",
            "Balancing still pays on newer GPUs: equal_finish is faster than plain BSP over both "
            "lines.",
            all(over < 1 for over in ours.values()),
            of="evenstep",
            why=f"its iteration time / BSP's is {said}",
        ),
        Claim(
            "line",
            "The faster the line, the more there is to gain: what is communicated cannot be "
            "balanced.",
            ours[fast] < ours[slow],
            of="evenstep",
            why=f"iteration time / BSP's is {said}",
        ),
        Claim(
            "best",
            "equal_finish is at least as fast as Alg. 2 over both lines.",
            not ahead,
            of="evenstep",
            why=", ".join(
                f"over {line} {policy} has {over:.3f} of BSP's time, equal_finish {ours[line]:.3f}"
                for (line, policy), over in ahead.items()
            ),
        ),
    ]


def _with_line(cluster: Cluster, part: float) -> Cluster:
    """Return the cluster with this part of its communication time."""
    network = Network(np.full(cluster.num_workers, 2 / part), _communication(cluster))
    return connect(cluster, network)


def _communication(cluster: Cluster) -> float:
    return float(cluster.conditions(0, 0.0).communication[0])


def _row(line: str, policy: str, outcomes: list[SimulationOutcome]) -> Row:
    figures = [outcome.figures() for outcome in outcomes]
    return {
        "line": line,
        "policy": policy,
        **{
            what: float(np.median([f[name] for f in figures]))
            for what, name in (
                ("iteration time / BSP", "time_over_bsp"),
                ("lost against the optimum", "waste"),
                ("waiting", "waiting_share"),
            )
        },
        "sizes at the end": outcomes[0].sizes[-1].tolist(),
    }


EXPERIMENT = Experiment(
    "modern",
    "a cluster of A100, RTX 6000 and T4, from a cluster file",
    "beyond the paper",
    "virtual",
    run,
)
