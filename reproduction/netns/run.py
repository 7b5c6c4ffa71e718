"""Starts a run in a process of its own, and keeps its output."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from evenstep.core import Floats, Ints
from evenstep.errors import EvenstepError
from evenstep.simulator.engine.simulation import Setup
from reproduction.checkout import environment

_LONGEST = 2.0
"""Seconds of an iteration at most, on a busy machine too."""
_LATE = 5
"""Iterations at the end of a phase whose median is taken."""


@dataclass(frozen=True, eq=False)
class NetnsRun:
    """The result of a run in network namespaces."""

    workers: list[str]
    sizes: Ints
    """x, (iteration, worker)."""
    times: Floats
    """t, (iteration, worker), in real seconds, as the workers measured it."""
    samples: Ints
    """The samples of all batches whose gradients arrived, in order of arrival."""
    accuracy: float
    """Of the test samples, at the end."""
    difference: float
    """Of the parameters at the end from those of one process, relative to the largest."""

    @classmethod
    def of_json(cls, plain: Mapping[str, Any]) -> NetnsRun:
        """Return the run that JSON holds."""
        arrays = {name: np.array(plain[name]) for name in ("sizes", "times", "samples")}
        return cls(**{**plain, **arrays})

    def late_times(self, end: int) -> Floats:
        """Return the median times of the iterations just before one."""
        times: Floats = np.median(self.times[max(0, end - _LATE) : end], axis=0)
        return times

    def uses(self, num_samples: int) -> Ints:
        """Return how often each sample was used in each complete epoch, (epoch, sample)."""
        num_epochs = len(self.samples) // num_samples
        epochs = self.samples[: num_epochs * num_samples].reshape(num_epochs, num_samples)
        return np.array([np.bincount(epoch, minlength=num_samples) for epoch in epochs])


def run_in_netns(setup: Setup, iterations: int, change_at: int) -> NetnsRun:
    """Run a policy on four workers in network namespaces; one link is degraded during the run.

    Raises EvenstepError, with the reason, where that is not permitted.
    """
    return NetnsRun.of_json(run_in_netns_as_json(setup, iterations, change_at))


def run_in_netns_as_json(setup: Setup, iterations: int, change_at: int) -> dict[str, Any]:
    """Do what `run_in_netns` does, and return what the process printed."""
    command = [sys.executable, "-m", "reproduction.netns"]
    try:
        done = subprocess.run(
            [*command, setup.policy, *map(str, (setup.delay, iterations, change_at))],
            env=environment(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1"),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60 + _LONGEST * iterations,
        )
    except (FileNotFoundError, subprocess.TimeoutExpired) as problem:
        raise EvenstepError(f"workers cannot be put behind lines here: {problem}") from None
    if done.returncode:
        last = (done.stderr.splitlines() or [f"exit code {done.returncode}"])[-1]
        raise EvenstepError(f"workers cannot be put behind lines here: {last}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found
