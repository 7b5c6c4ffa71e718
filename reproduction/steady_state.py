"""Time per update once batch sizes have settled: timing-only runs, long enough for Alg. 2."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from evenstep.simulator.clusters.registry import make_cluster
from evenstep.simulator.engine.experiment import Experiment as Training
from evenstep.simulator.engine.simulation import Setup
from reproduction.end_to_end import ALG_2, ASP, BALANCED, BSP, MODELS, NAMES, SSP
from reproduction.experiment import Progress, Settings, steps
from reproduction.result import Row, Table, beside
from reproduction.wording import of_seeds

ORACLE = "oracle"
_NON_BLOCKING = 1
"""A plan takes effect an iteration later: as the paper runs LB-BSP on GPUs."""
SCHEMES = {
    BSP: Training("bsp"),
    ASP: Training("asp"),
    SSP: Training("ssp"),
    ALG_2: Training("bsp", Setup("stepwise:literal=true", delay=_NON_BLOCKING)),
    BALANCED: Training("bsp", Setup("equal_finish", delay=_NON_BLOCKING)),
    ORACLE: Training("bsp", Setup("oracle")),
}
ALL = 16
CLUSTERS = (*((ALL, model) for model in MODELS), (12, "resnet32"))
"""Number of workers, and whose times they have; 12 are those without the V100s."""
SETTLED, WHOLE = slice(2, 4), slice(0, 4)
"""The quarters of a run that count."""
OVER_BSP = {(ALL, "resnet32"): 0.63, (12, "resnet32"): 0.72}
"""The paper's time per update on a cluster: LB-BSP is 37 % faster than BSP with ResNet-32."""
_OVER_ASP = {"inception_v3": 0.85}


@dataclass(frozen=True, eq=False)
class SteadyState:
    """How fast every scheme is, on each of `CLUSTERS`."""

    seconds: Mapping[tuple[int, str], Mapping[str, Sequence[Sequence[float]]]]
    """Cluster: scheme: for each seed, how long each quarter of the updates took."""
    seeds: Sequence[int]
    updates: int

    def pace(
        self, cluster: tuple[int, str], scheme: str, base: str, quarters: slice = SETTLED
    ) -> float:
        """Return the median over seeds of a scheme's time per update over another's."""
        made = self.seconds[cluster]
        pairs = zip(made[scheme], made[base], strict=True)
        return float(np.median([sum(ours[quarters]) / sum(by[quarters]) for ours, by in pairs]))


def steady_state(settings: Settings, progress: Progress) -> SteadyState:
    """Run every scheme on every cluster."""
    updates, seeds = settings.choose((600, (0,)), (2_000, (0, 1, 2)))
    work = [(*each, scheme, seed) for each in CLUSTERS for scheme in SCHEMES for seed in seeds]
    seconds: dict[tuple[int, str], dict[str, list[Sequence[float]]]] = {
        each: {scheme: [] for scheme in SCHEMES} for each in CLUSTERS
    }
    for num_workers, model, scheme, seed in steps(work, progress):
        made = settings.parts.get(
            f"settled/{num_workers}/{model}/{scheme}/{seed}/{updates}",
            partial(_quarters, num_workers, model, scheme, seed, updates),
        )
        seconds[num_workers, model][scheme].append(made)
    return SteadyState(seconds, seeds, updates)


def _quarters(num_workers: int, model: str, scheme: str, seed: int, updates: int) -> list[float]:
    cluster = make_cluster(f"A:{num_workers},model={model}", iterations=updates, seed=seed)
    run = SCHEMES[scheme].start(cluster)
    for _ in run.advance(updates):
        pass
    at = [0.0, *run.times]
    return [at[updates * (i + 1) // 4] - at[updates * i // 4] for i in range(4)]


def steady_state_table(made: SteadyState) -> Table:
    """Show the time per update of each scheme, on the cluster of 16."""
    return Table(
        f"Time per update once batch sizes have settled, {ALL} workers",
        "virtual",
        [_row(made, model, scheme) for model in MODELS for scheme in SCHEMES],
        f"No gradients; settled is the last half of {made.updates} updates; "
        f"{of_seeds('medians', made.seeds)}. Alg. 2 is to the letter; its plans and those of "
        "equal_finish take effect an iteration later (non-blocking). The oracle knows the noise of "
        "the coming iteration. The last column is over BSP's: where it is not 1, noise aside, "
        "batch sizes still changed.",
    )


def _row(made: SteadyState, model: str, scheme: str) -> Row:
    pace = partial(made.pace, (ALL, model), scheme)
    third, fourth = (pace(BSP, slice(i, i + 1)) for i in (2, 3))
    balances = scheme in (ALG_2, BALANCED)
    return {
        "times of": MODELS[model],
        "scheme": NAMES.get(scheme, scheme),
        **beside(
            "time per update / BSP", pace(BSP), OVER_BSP.get((ALL, model)) if balances else None
        ),
        **beside("time per update / ASP", pace(ASP), _OVER_ASP.get(model) if balances else None),
        "settling included / BSP": pace(BSP, WHOLE),
        "last quarter / the one before": fourth / third,
    }
