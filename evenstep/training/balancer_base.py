"""Properties and methods that the balancers of all frameworks have in common."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from html import escape
from typing import Any

from evenstep.core import Plan
from evenstep.core.plan import html_table, joined_sizes
from evenstep.training.loop import Loop


class BalancerBase:
    """Exposes the loop of a balancer to its user."""

    _loop: Loop

    def __repr__(self) -> str:
        # A balancer may still wait for its model, and must not ask for it here.
        loop = self.__dict__.get("_loop")
        name = type(self).__name__
        if loop is None:
            return f"{name}(not bound to a model yet)"
        plan = f"{joined_sizes(loop.plan.sizes)} of {loop.total}"
        who = f"worker {loop.worker} of {loop.num_workers}"
        return f"{name}({who}, iteration {loop.iteration}, batch sizes {plan})"

    def _repr_html_(self) -> str:
        """Return a table of the workers for notebooks."""
        loop = self.__dict__.get("_loop")
        if loop is None:
            return f"<p>{escape(repr(self))}</p>"
        sizes = zip(loop.workers, loop.plan.sizes.tolist(), strict=False)
        rows = [(name, size, f"{size / loop.total:.1%}") for name, size in sizes]
        return html_table(repr(self), ("worker", "batch size", "share"), rows)

    @property
    def worker(self) -> int:
        """The number of this worker, from 0."""
        return self._loop.worker

    @property
    def num_workers(self) -> int:
        return self._loop.num_workers

    @property
    def total(self) -> int:
        """X: samples of all workers in one iteration.

        It can be set between two iterations, on all workers alike, and holds from the next batch
        that a loader returns; batch sizes stay in proportion.
        """
        return self._loop.total

    @total.setter
    def total(self, total: int) -> None:
        self._loop.change_total(total)

    @property
    def iteration(self) -> int:
        """k: the number of finished iterations."""
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
        """Return the mean over all samples of the iteration, given the mean over this batch.

        All workers must call it. The wait for the others does not count as work.
        """
        return self._loop.mean(float(value))

    def away(self) -> AbstractContextManager[None]:
        """Return a context that stops the clock, for an evaluation or a checkpoint, say."""
        return self._loop.away()

    def state_dict(self) -> dict[str, Any]:
        """Return everything learned, for a checkpoint; the state of one worker fits all."""
        return self._loop.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a checkpoint, also one of another number of workers."""
        self._loop.load_state_dict(state)

    def summary(self) -> str:
        """Return one line on the time that balancing has saved so far."""
        return self._loop.summary()

    def close(self) -> None:
        """Stop background work and print the summary; this also happens at exit."""
        self._loop.close()
