"""Four workers behind real lines, where this machine lets us make network namespaces."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from evenstep.clusters.scenarios import make_scenario
from evenstep.core.arrays import Floats, Ints
from evenstep.errors import EvenstepError
from evenstep.reproduce.linked_hub import DEGRADED
from evenstep.reproduce.result import Claim, Row, Table, beside

PAPERS_SIZES = [89, 21, 12, 6]
"""Batch sizes of V100, M60, K80 and K520 before the change."""
_LONGEST = 2.0
"""Seconds of an iteration at most, on a busy machine too."""
_LATE = 5
"""Iterations at the end of a phase whose median is taken."""


@dataclass(frozen=True, eq=False)
class Linked:
    """A run of `linked_hub`."""

    workers: list[str]
    sizes: Ints
    """(iteration, worker)."""
    times: Floats
    """t of each, in real seconds."""

    def late_times(self, end: int) -> Floats:
        """Return the median times of the iterations just before one."""
        times: Floats = np.median(self.times[max(0, end - _LATE) : end], axis=0)
        return times


def follow_linked(policy: str, iterations: int, change_at: int) -> Linked:
    """Run a policy on four workers in network namespaces; a line is degraded on the way.

    Raises EvenstepError, with the reason, where that may not be done.
    """
    hub = ["unshare", "-n", sys.executable, "-m", "evenstep.reproduce.linked_hub"]
    try:
        done = subprocess.run(
            [*hub, policy, str(iterations), str(change_at)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60 + _LONGEST * iterations,
        )
    except (FileNotFoundError, subprocess.TimeoutExpired) as problem:
        raise EvenstepError(f"workers cannot be put behind lines here: {problem}") from None
    if done.returncode:
        last = (done.stderr.splitlines() or ["no reason given"])[-1]
        raise EvenstepError(
            f"workers cannot be put behind lines here: {last}; it takes Linux, iproute2 and the "
            "right to make network namespaces (usually root)"
        )
    found = json.loads(done.stdout)
    return Linked(found["workers"], np.array(found["sizes"]), np.array(found["times"]))


def for_real(
    policies: Sequence[str], iterations: int, change_at: int
) -> tuple[list[Table], list[Claim], list[str]]:
    """Return what policies do on real lines; where that may not be done, the reason alone."""
    try:
        runs = {policy: follow_linked(policy, iterations, change_at) for policy in policies}
    except EvenstepError as problem:
        return [], [], [f"Not for real: {problem}."]
    table = Table(
        f"For real: four processes, the M60's line degraded at iteration {change_at}",
        "emulated",
        [_row(policy, run, change_at) for policy, run in runs.items()],
        f"{iterations} iterations. Each process is in a network namespace, behind a line with a "
        "token bucket of 100 Mbit/s, later 25; the parameter server talks plain TCP. Computing is "
        "emulated: scenario G's curves at a tenth of their seconds.",
    )
    before, after = (int(runs[policies[0]].sizes[k][DEGRADED]) for k in (change_at - 1, -1))
    claim = Claim(
        "real_line",
        f"When the line of the M60 is really degraded, its batch becomes smaller ({before} to "
        f"{after} samples).",
        after < before,
        why="this machine was busy: other things made a worker slow before the line did",
    )
    return [table], [claim], []


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
    }
