"""`scale`: beyond the paper, how policies settle, and their cost, with up to 4096 workers."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import partial
from typing import Any

from evenstep.simulator.clusters.scenarios import make_scenario
from evenstep.simulator.engine.simulation import medians
from reproduction.decision_cost import milliseconds
from reproduction.experiment import Experiment, Progress, Settings, steps
from reproduction.result import Claim, Curve, Plot, Result, Table

POLICIES = ("stepwise", "equal_finish")
WORKERS = (4, 16, 64, 256, 1024, 4096)
QUICK_WORKERS = (4, 16)
GOAL, GOAL_WORKERS = 0.025, 256
"""The target for the loss of equal_finish, and the number of workers up to which it holds."""
_SEEDS = 3
_LARGE = 1024
"""The number of workers from which one seed must suffice."""


def run(settings: Settings, progress: Progress) -> Result:
    """Simulate both policies at every number of workers, and time their decisions."""
    workers = settings.choose(QUICK_WORKERS, WORKERS)
    figures: dict[tuple[int, str], dict[str, Any]] = {}
    for n, policy in steps([(n, policy) for n in workers for policy in POLICIES], progress):
        seeds = range(1 if settings.quick or n >= _LARGE else _SEEDS)
        part = partial(_figures, n, policy, seeds, repeat=settings.choose(5, 15))
        figures[n, policy] = settings.parts.get(f"{n}/{policy}", part)
    return Result(
        [_settling(figures), _costs(figures)],
        _plots(figures, workers),
        _claims(figures, workers),
        ["The paper has at most 16 GPU workers, and does not show how Alg. 2 scales."],
        seeds=list(range(1 if settings.quick else _SEEDS)),
    )


def _figures(num_workers: int, policy: str, seeds: Sequence[int], repeat: int) -> dict[str, Any]:
    clusters = [make_scenario("G", num_workers, seed=seed) for seed in seeds]
    return {
        **medians(clusters, policy),
        "milliseconds": milliseconds(policy, None, num_workers, repeat),
        "seeds": len(seeds),
    }


def _settling(figures: dict[tuple[int, str], dict[str, Any]]) -> Table:
    return Table(
        "Scenario G: settling within 5 % of the optimum, and time lost against it",
        "virtual",
        [
            {
                "workers": n,
                "policy": policy,
                "settled after": found["settle_5"],
                "after the change": found["settle_5_after"],
                "waste": found["waste"],
                "iteration time / BSP": found["time_over_bsp"],
                "seeds": found["seeds"],
            }
            for (n, policy), found in figures.items()
        ],
        "500 iterations, the M60s degraded at 150; medians over seeds; - is never.",
    )


def _costs(figures: dict[tuple[int, str], dict[str, Any]]) -> Table:
    return Table(
        "A decision (observe and plan), median milliseconds",
        "measured",
        [
            {"workers": n, **{policy: figures[n, policy]["milliseconds"] for policy in POLICIES}}
            for n in dict.fromkeys(n for n, _ in figures)
        ],
        "On this machine, whatever else ran on it.",
    )


def _plots(figures: dict[tuple[int, str], dict[str, Any]], workers: Sequence[int]) -> list[Plot]:
    return [
        Plot(
            title,
            kind,
            "workers",
            unit,
            [Curve(p, list(workers), [figures[n, p][name] for n in workers]) for p in POLICIES],
            log=True,
        )
        for title, kind, unit, name in (
            ("Time lost against the optimum", "virtual", "share", "waste"),
            ("A decision", "measured", "milliseconds", "milliseconds"),
        )
    ]


def _claims(figures: dict[tuple[int, str], dict[str, Any]], workers: Sequence[int]) -> list[Claim]:
    def waste(policy: str) -> list[float]:
        return [figures[n, policy]["waste"] for n in workers]

    by_workers = {
        n: (ours, papers)
        for n, ours, papers in zip(workers, waste("equal_finish"), waste("stepwise"), strict=True)
    }
    over = {n: ours for n, (ours, _) in by_workers.items() if n <= GOAL_WORKERS and ours > GOAL}
    behind = {n: pair for n, pair in by_workers.items() if not pair[0] < pair[1]}
    # Each number of workers with the one before it.
    no_more = {
        n: (before, now)
        for (before, now), n in zip(itertools.pairwise(waste("stepwise")), workers[1:], strict=True)
        if not before < now
    }
    return [
        Claim(
            "waste",
            f"equal_finish loses at most {GOAL:.1%} against the optimum with up to {GOAL_WORKERS} "
            "workers, settling twice included.",
            not over,
            of="evenstep",
            why=", ".join(f"it loses {ours:.1%} with {n} workers" for n, ours in over.items()),
        ),
        Claim(
            "better",
            "equal_finish loses less than stepwise, our reading of Alg. 2, at every number of "
            "workers.",
            not behind,
            of="evenstep",
            why=", ".join(
                f"with {n} workers it loses {ours:.1%}, stepwise {papers:.1%}"
                for n, (ours, papers) in behind.items()
            ),
        ),
        Claim(
            "alg_2_does_not_scale",
            "Stepwise, which moves samples between one pair of workers at a time, loses more and "
            "more as workers are added.",
            not no_more,
            of="evenstep",
            why=", ".join(
                f"with {n} workers it loses {now:.1%}, after {before:.1%} with fewer"
                for n, (before, now) in no_more.items()
            ),
        ),
    ]


EXPERIMENT = Experiment(
    "scale",
    "settling, waste and cost of a decision with up to 4096 workers",
    "beyond the paper",
    "virtual",
    run,
    also=("measured",),
)
