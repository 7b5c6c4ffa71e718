"""What is seen of linked runs: a table, plots and claims, or the reason why there are none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from evenstep.clusters.scenarios import make_scenario
from evenstep.errors import EvenstepError
from evenstep.reproduce.course import course_plots
from evenstep.reproduce.experiment import Progress, steps
from evenstep.reproduce.linked.following import Linked, run_linked
from evenstep.reproduce.linked.link import DEGRADED
from evenstep.reproduce.parts import Parts
from evenstep.reproduce.result import Claim, Plot, Result, Row, Table, beside
from evenstep.workloads import NUM_TRAINING

PAPERS_SIZES = [89, 21, 12, 6]
"""Batch sizes of V100, M60, K80 and K520 before the change."""
ROUNDING = 1e-10
"""What float64 leaves of equality: some 1e-16 in every update, of which there are hundreds, and
the net is smooth. A sample that is left out, or counted wrong, shows at 1e-6 and more."""


def for_real(
    policies: Sequence[str], iterations: int, change_at: int, parts: Parts, progress: Progress
) -> Result:
    """Return what policies do on real lines; where that may not be done, the reason alone."""
    try:
        runs = {
            policy: Linked.of_json(
                parts.get(f"for real, {policy}", partial(run_linked, policy, iterations, change_at))
            )
            for policy in steps(policies, progress)
        }
    except EvenstepError as problem:
        return Result(differences=[f"Not for real: {problem}."])
    table = Table(
        f"For real: four processes, the M60's line degraded at iteration {change_at}",
        "emulated",
        [_row(policy, run, change_at) for policy, run in runs.items()],
        f"{iterations} iterations. Each process is in a network namespace, behind a line with a "
        "token bucket of 100 Mbit/s, later 25. They pull parameters from a synchronous parameter "
        "server, and push gradients to it, over Thrift: 94 kB each way, so that the line takes "
        "what scenario G says, at a tenth of its seconds. What is trained is a net with one "
        "hidden layer on digits. Lines, processes, parameter server and gradients are real; how "
        "long computing takes is emulated: scenario G's curves at a tenth of their seconds.",
    )
    return Result([table], _plots(runs, change_at), _claims(runs, change_at))


def _row(policy: str, run: Linked, change_at: int) -> Row:
    cluster = make_scenario("G", noisy=False)
    best = [cluster.optimum(cluster.conditions(k, 0.0)) for k in (0, cluster.changes_at or 0)]
    return {
        "policy": policy,
        **beside("sizes before", run.sizes[change_at - 1].tolist(), PAPERS_SIZES),
        "optimum before": best[0].tolist(),
        "sizes at the end": run.sizes[-1].tolist(),
        "optimum at the end": best[1].tolist(),
        "t before, ms": (1e3 * run.late_times(change_at)).round().tolist(),
        "t at the end, ms": (1e3 * run.late_times(len(run.times))).round().tolist(),
        "test accuracy": run.accuracy,
        "parameters, difference to one process": run.difference,
    }


def _plots(runs: Mapping[str, Linked], change_at: int) -> list[Plot]:
    return [
        plot
        for policy, run in runs.items()
        for plot in course_plots(
            f"For real, {policy}: {{}}", "emulated", run.workers, run.sizes, run.times, change_at
        )
    ]


def _claims(runs: Mapping[str, Linked], change_at: int) -> list[Claim]:
    first = next(iter(runs.values()))
    m60 = first.workers.index(DEGRADED)
    before, after = (int(first.sizes[k][m60]) for k in (change_at - 1, -1))
    furthest = max(run.difference for run in runs.values())
    uses = [run.uses(NUM_TRAINING) for run in runs.values()]
    return [
        Claim(
            "real_line",
            f"When the line of the M60 is really degraded, its batch becomes smaller ({before} to "
            f"{after} samples).",
            after < before,
            why="this machine was busy: other things made a worker slow before the line did",
        ),
        Claim(
            "real_training",
            "Workers with unequal batches that change train what one process trains on whole "
            f"batches: after {len(first.sizes)} updates parameters agree to float64's rounding "
            f"({furthest:.1e}, relative to the largest).",
            furthest < ROUNDING,
            of="evenstep",
        ),
        Claim(
            "real_samples",
            f"Every sample is trained on exactly once in each of {len(uses[0])} epochs.",
            all(len(counts) > 0 and bool((counts == 1).all()) for counts in uses),
            of="evenstep",
        ),
    ]
