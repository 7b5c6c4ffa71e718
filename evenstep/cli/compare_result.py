"""The result of a comparison, as ``evenstep compare --json`` prints it."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from evenstep.engines.comparison import Comparison
from evenstep.engines.contenders import Contender
from evenstep.engines.figures import Figures, normalised, summary
from evenstep.engines.named import SECONDS


def result_of(
    comparison: Comparison,
    contenders: list[Contender],
    seeds: list[int],
    figures: list[dict[str, Figures]],
) -> dict[str, Any]:
    """Return what was asked for and all that came out: the figures of every seed."""
    schemes = []
    for contender in contenders:
        rows = [
            {"seed": seed, **normalised(contender, of_seed)}
            for seed, of_seed in zip(seeds, figures, strict=True)
        ]
        further = [_further(of_seed[contender.label]) for of_seed in figures]
        schemes.append(
            {
                "scheme": contender.label,
                **_details(comparison, contender, seeds[0]),
                **summary(rows),
                "seeds": [{**row, **more} for row, more in zip(rows, further, strict=True)],
            }
        )
    return {"settings": _settings(comparison, seeds), "schemes": schemes}


def _further(figures: Figures) -> dict[str, Any]:
    return {"curve": figures.curve, "faults": [asdict(fault) for fault in figures.faults]}


def _details(comparison: Comparison, contender: Contender, seed: int) -> dict[str, Any]:
    cluster = comparison.make_cluster(seed, contender)
    setup = comparison.setup(contender, cluster)
    return {
        "workers": list(cluster.workers),
        "total": cluster.total,
        "policy": setup.policy,
        "predictor": setup.predictor,
        "weighted": contender.weighted,
    }


def _settings(comparison: Comparison, seeds: list[int]) -> dict[str, Any]:
    cluster = comparison.make_cluster(seeds[0])
    workload = comparison.workload
    return {
        "clock": comparison.engine.clock,
        "time": SECONDS[comparison.engine.clock],
        "cluster": comparison.cluster,
        "cluster_name": cluster.name,
        "num_workers": cluster.num_workers,
        "total": cluster.total,
        "noisy": comparison.noisy,
        "workload": None if workload is None else workload.name,
        "optimizer": None if workload is None else comparison.optimizer,
        "partition": comparison.partition,
        "shards": comparison.num_shards,
        "target": comparison.target,
        "iterations": comparison.num_updates(cluster),
        "stops_at_target": comparison.iterations is None and comparison.target is not None,
        "per_update_from": comparison.scored_from(cluster),
        "evaluate_every": comparison.evaluate_every,
        "seeds": seeds,
    }
