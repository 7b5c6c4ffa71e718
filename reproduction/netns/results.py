"""The results of runs in namespaces: a table, plots and claims, or the reason for their absence."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from evenstep.errors import EvenstepError
from evenstep.simulator.clusters.scenarios import make_scenario
from evenstep.simulator.workloads import NUM_TRAINING
from reproduction.experiment import Progress, steps
from reproduction.four_gpus import OURS, PAPERS, PAPERS_SIZES, POLICIES, iteration_plots
from reproduction.netns.link import DEGRADED
from reproduction.netns.run import NetnsRun, run_in_netns_as_json
from reproduction.parts import Parts
from reproduction.result import Claim, Plot, Result, Row, Table, beside

ROUNDING = 1e-10
"""The rounding error of float64: some 1e-16 in every update, of which there are hundreds, and
the net is smooth. A sample that is left out, or counted wrong, makes 1e-6 and more."""


def for_real(iterations: int, change_at: int, parts: Parts, progress: Progress) -> Result:
    """Return the results on real links, or only the reason if they cannot be made."""
    try:
        runs = {
            policy: NetnsRun.of_json(
                parts.get(
                    f"for real, {policy}",
                    partial(run_in_netns_as_json, POLICIES[policy], iterations, change_at),
                )
            )
            for policy in steps((OURS, PAPERS), progress)
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


def _row(policy: str, run: NetnsRun, change_at: int) -> Row:
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


def _plots(runs: Mapping[str, NetnsRun], change_at: int) -> list[Plot]:
    return [
        plot
        for policy, run in runs.items()
        for plot in iteration_plots(
            f"For real, {policy}: {{}}", "emulated", run.workers, run.sizes, run.times, change_at
        )
    ]


def _claims(runs: Mapping[str, NetnsRun], change_at: int) -> list[Claim]:
    furthest, worst = max((run.difference, policy) for policy, run in runs.items())
    updates = len(runs[OURS].sizes)
    uses = {policy: run.uses(NUM_TRAINING) for policy, run in runs.items()}
    num_epochs = min(map(len, uses.values()))
    wrong = {policy: int((counts != 1).sum()) for policy, counts in uses.items()}
    return [
        _line(PAPERS, runs[PAPERS], change_at, "real_line", "paper"),
        _line(OURS, runs[OURS], change_at, "our_real_line", "evenstep"),
        Claim(
            "real_training",
            "Workers with unequal batches that change train what one process trains on whole "
            f"batches: after {updates} updates parameters agree to float64's rounding "
            f"({furthest:.1e}, relative to the largest).",
            furthest < ROUNDING,
            of="evenstep",
            why=f"they differ most with {worst}, and rounding leaves {ROUNDING:.0e} at most; what "
            "else makes the difference is not known",
        ),
        Claim(
            "real_samples",
            f"Every sample is trained on exactly once in each of {num_epochs} epochs.",
            num_epochs > 0 and not any(wrong.values()),
            of="evenstep",
            why="; ".join(
                f"with {policy} {count} uses were not exactly one"
                for policy, count in wrong.items()
                if count
            )
            or f"{updates} updates make {num_epochs} whole epochs",
        ),
    ]


def _line(policy: str, run: NetnsRun, change_at: int, name: str, of: str) -> Claim:
    m60 = run.workers.index(DEGRADED)
    before, after = (int(run.sizes[k][m60]) for k in (change_at - 1, -1))
    times = [1e3 * run.late_times(end)[m60] for end in (change_at, len(run.times))]
    return Claim(
        name,
        "When the line of the M60 is really degraded, its batch becomes smaller "
        f"({policy}: {before} to {after} samples).",
        after < before,
        of=of,
        why=f"the M60 took {times[0]:.0f} ms before the change and {times[1]:.0f} ms at the end, "
        "as it measured it; what else there is to it is not known",
    )
