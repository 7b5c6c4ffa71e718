"""Shared by the benchmarks of a throttled worker: the ideal, the figures, and both workers."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np

from evenstep.errors import EvenstepError
from evenstep.simulator.load.throttle import Throttles

PARTS = (0.125, 0.375, 0.625, 0.875)
"""Of the total: the sizes that solo times are measured at."""
TO_REACH = 0.85
LEAST = 1.15
"""The smallest ideal speedup that says anything."""
FEWEST_BLOCKS = 3
"""The first blocks are to warm up."""

Line = tuple[float, float]
"""Intercept and slope of a worker's time over its batch size."""


def line_through(sizes: Sequence[int], times: Any) -> Line:
    """Return the line through the times of some sizes.

    >>> intercept, slope = line_through([8, 16], [0.5, 0.75])
    >>> round(intercept, 6), round(slope, 6)
    (0.25, 0.03125)
    """
    slope, intercept = np.polyfit(sizes, times, 1)
    return float(intercept), float(slope)


def optimum(lines: Sequence[Line], total: int) -> tuple[float, float, int]:
    """Return the iteration times of the even and of the best split, and the latter's first size.

    >>> optimum([(0.0, 0.25), (0.0, 0.5)], total=12)
    (3.0, 2.0, 8)
    """
    times = np.array([[a + b * x for x in range(1, total)] for a, b in lines])
    joined = np.maximum(times[0], times[1][::-1])
    return float(joined[total // 2 - 1]), float(joined.min()), int(joined.argmin()) + 1


def figures_of(plain: float, balanced: float, even: float, best: float) -> dict[str, float]:
    """Return the figures of a run, from iteration times in seconds; `even` and `best` are solo."""
    return {
        "plain, ms": 1e3 * plain,
        "balanced, ms": 1e3 * balanced,
        "ideal, ms": 1e3 * best,
        "speedup": plain / balanced,
        "ideal speedup": even / best,
        "share of ideal": plain / balanced * best / even,
    }


def verdict(figures: Mapping[str, Any]) -> str:
    """Say whether enough of the ideal was reached, where there was something to gain.

    >>> verdict({"ideal speedup": 1.5, "share of ideal": 0.9})
    'yes'
    >>> verdict({"ideal speedup": 1.01, "share of ideal": 0.9})
    'no verdict: the throttle must show (ideal speedup 1.15), the machine is busy'
    """
    if figures["ideal speedup"] < LEAST:
        return f"no verdict: the throttle must show (ideal speedup {LEAST:g}), the machine is busy"
    return "yes" if figures["share of ideal"] >= TO_REACH else "NO"


def show(framework: str, figures: Mapping[str, Any], as_json: bool) -> None:
    """Print the figures with the verdict."""
    figures = {**figures, "reached": verdict(figures)}
    if as_json:
        print(json.dumps(figures))
        return
    print(f"{framework}, one of two workers throttled, measured (to reach: {TO_REACH})")
    for name, value in figures.items():
        print(f"  {name:>16}  {value if isinstance(value, str) else format(value, '.4g')}")


def in_groups(launch: Callable[[list[str]], dict[str, Any]]) -> dict[str, Any] | None:
    """Return what `launch` finds with two workers' control groups; None where there are none.

    Only that is a reason to skip: a worker that fails is not.
    """
    with ExitStack() as stack:
        try:
            throttles = stack.enter_context(Throttles([1.0, 1.0], signals=True))
        except EvenstepError as error:
            print(f"skipped: {error}")
            return None
        return launch(throttles.groups)


def free_addresses(count: int) -> list[str]:
    """Return free addresses of this machine."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    addresses = [f"127.0.0.1:{one.getsockname()[1]}" for one in sockets]
    for one in sockets:
        one.close()
    return addresses


def run_workers(
    commands: Sequence[Sequence[str]], environments: Sequence[Mapping[str, str]], deadline: float
) -> None:
    """Run the workers to their end; end all of them if one fails, or at the timeout."""
    until = time.monotonic() + deadline
    workers: list[subprocess.Popen[bytes]] = []
    try:
        for command, environment in zip(commands, environments, strict=True):
            workers.append(subprocess.Popen(command, env={**os.environ, **environment}))
        while any(worker.poll() is None for worker in workers):
            if any(worker.poll() for worker in workers) or time.monotonic() > until:
                break
            time.sleep(0.05)
        codes = [worker.poll() for worker in workers]
        if any(code != 0 for code in codes):
            raise RuntimeError(
                f"both workers must end well within {deadline:g} s, got exit codes {codes}"
            )
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
