"""What all balancers on a loop tell about it, whatever their framework."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

from evenstep.core import Plan
from evenstep.training.loop import Loop


class BalancerBase:
    """A balancer that has a loop, and tells of it."""

    _loop: Loop

    @property
    def worker(self) -> int:
        """Which of the workers this one is."""
        return self._loop.worker

    @property
    def num_workers(self) -> int:
        return self._loop.num_workers

    @property
    def total(self) -> int:
        """X: samples of all workers in one iteration."""
        return self._loop.total

    @property
    def iteration(self) -> int:
        """k: iterations that have been finished."""
        return self._loop.iteration

    @property
    def plan(self) -> Plan:
        """The plan of the current iteration: batch sizes of all workers."""
        return self._loop.plan

    @property
    def newest_plan(self) -> Plan:
        """The plan of the next iteration, as far as it is known."""
        return self._loop.newest_plan

    @property
    def batch_size(self) -> int:
        """This worker's planned batch size."""
        return self._loop.batch_size

    def mean(self, value: Any) -> float:
        """Return the mean over all samples of the iteration of what is a mean over this batch.

        All workers must call it. It waits for all of them, which does not count as work.
        """
        return self._loop.mean(float(value))

    def away(self) -> AbstractContextManager[None]:
        """Return a context for what is not work of the iteration, such as an evaluation."""
        return self._loop.away()

    def state_dict(self) -> dict[str, Any]:
        """Return everything learned, for a checkpoint; what one worker returns fits all."""
        return self._loop.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up what a checkpoint had learned, also with another number of workers."""
        self._loop.load_state_dict(state)

    def summary(self) -> str:
        """Return in one line what balancing gained so far."""
        return self._loop.summary()

    def close(self) -> None:
        """End what runs in the background, and print the summary; done at exit by itself."""
        self._loop.close()
