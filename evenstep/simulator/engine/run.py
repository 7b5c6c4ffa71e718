"""A run of an engine: the times of its updates and the evaluations of the model.

One run gives hardware efficiency (time per update), statistical efficiency (updates to a target)
and their product, the time to the target. An update is n gradients, whether the scheme averages
them or applies them one by one; the paper's per-update time is the time per gradient.

The accuracy of a model in training is noisy, and the first crossing of a noisy curve is a matter of
luck. So a target counts as reached when the mean of the last evaluations reaches it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Protocol

from evenstep.core import require_whole
from evenstep.simulator.engine.iteration import Arrival, Fault
from evenstep.simulator.schemes import Scheme

if TYPE_CHECKING:
    import torch

    from evenstep.simulator.workloads.workload import Evaluation

SMOOTHED_OVER = 5
"""Evaluations in a smoothed accuracy."""


class Engine(Protocol):
    """Runs workers under a scheme, in virtual or real time."""

    clock: str
    """`virtual`, `real`, or `emulated`: real workers that take the times of a cluster."""

    @property
    def scheme(self) -> Scheme: ...

    @property
    def now(self) -> float:
        """Seconds of the engine's clock."""
        ...

    @property
    def num_dropped(self) -> int: ...

    @property
    def faults(self) -> Sequence[Fault]:
        """Failures of workers and shards so far."""
        ...

    def arrivals(self) -> Iterator[Arrival]: ...


class Evaluator(Protocol):
    """Evaluates the current model."""

    @property
    def parameters(self) -> list[torch.Tensor]: ...

    def evaluate(self) -> Evaluation: ...


@dataclass(frozen=True)
class Point:
    """An evaluation of the model after a number of updates; the clock stops meanwhile."""

    updates: int
    time: float
    """Seconds of the engine's clock."""
    evaluation: Evaluation


@dataclass(frozen=True)
class Progress:
    """A completed update."""

    updates: int
    time: float
    """Seconds of the engine's clock."""
    point: Point | None
    """The evaluation after this update, if any."""


class Run:
    """Runs an engine and collects the results.

    >>> from evenstep.simulator.clusters.scenarios import make_scenario
    >>> from evenstep.simulator.engine.planners import OraclePlanner
    >>> from evenstep.simulator.engine.virtual import VirtualEngine
    >>> cluster = make_scenario("G", noisy=False)
    >>> run = Run(VirtualEngine(cluster, OraclePlanner(cluster)))
    >>> [round(progress.time, 2) for progress in run.advance(updates=3)]
    [1.25, 2.5, 3.75]
    >>> round(run.per_update_time(), 4)
    0.3125
    """

    def __init__(
        self, engine: Engine, evaluator: Evaluator | None = None, evaluate_every: int = 10
    ) -> None:
        """`evaluate_every` is in updates; without an evaluator there are no points."""
        require_whole("evaluate_every", evaluate_every)
        self._engine = engine
        self._arrivals = engine.arrivals()
        self._evaluator = evaluator
        self._evaluate_every = evaluate_every
        self.num_counted = engine.scheme.num_counted
        """n: gradients in one update."""
        self.times: list[float] = []
        """Completion time of each update, in seconds of the engine's clock."""
        self.points: list[Point] = []
        self.staleness = Counter[int]()
        """Number of used gradients by age in updates of the server."""
        self.num_samples = 0
        """Samples in all used gradients."""

    @property
    def parameters(self) -> list[torch.Tensor]:
        """The current parameters, then the buffers; they must not be changed."""
        assert self._evaluator is not None, "timing-only"
        return self._evaluator.parameters

    @property
    def clock(self) -> str:
        """The kind of its times: `virtual`, `emulated` or `real`."""
        return self._engine.clock

    @property
    def faults(self) -> Sequence[Fault]:
        """Failures of workers and shards so far."""
        return self._engine.faults

    @property
    def num_dropped(self) -> int:
        """Gradients that were computed or started and did not count."""
        return self._engine.num_dropped

    def advance(self, updates: int, target: float | None = None) -> Iterator[Progress]:
        """Yield after every update, until `updates` are made or the target accuracy is reached."""
        if not self.points:
            self._evaluate()
        last = len(self.times) + updates
        while len(self.times) < last:
            self._make_update()
            count = len(self.times)
            due = count % self._evaluate_every == 0 or count == last
            point = self._evaluate() if due else None
            yield Progress(count, self.times[-1], point)
            if point and target is not None and self.smoothed[-1] >= target:
                return

    def per_update_time(self, skip: int = 0) -> float:
        """Return the average time per received gradient, without the first `skip` updates.

        That is the paper's per-update time (section 5.1).
        """
        start = self.times[skip - 1] if skip else 0.0
        return (self.times[-1] - start) / ((len(self.times) - skip) * self.num_counted)

    @property
    def smoothed(self) -> list[float]:
        """The smoothed accuracy at each point."""
        return smoothed([point.evaluation.accuracy for point in self.points])

    def reached(self, target: float) -> Point | None:
        """Return the first point with this smoothed accuracy, or None if it was never reached."""
        pairs = zip(self.points, self.smoothed, strict=True)
        return next((point for point, accuracy in pairs if accuracy >= target), None)

    def _make_update(self) -> None:
        """Run the engine until another n gradients have been used."""
        missing = self.num_counted
        while missing:
            arrival = next(self._arrivals)
            if arrival.used:
                missing -= 1
                self.staleness[arrival.staleness] += 1
                self.num_samples += arrival.batch_size
        self.times.append(self._engine.now)

    def _evaluate(self) -> Point | None:
        if self._evaluator is None:
            return None
        point = Point(len(self.times), self._engine.now, self._evaluator.evaluate())
        self.points.append(point)
        return point


def smoothed(accuracies: Sequence[float], over: int = SMOOTHED_OVER) -> list[float]:
    """Return the mean of each accuracy and those before it, of `over` or as many as there are.

    >>> smoothed([0.1, 0.5, 0.9, 0.7], over=2)
    [0.1, 0.3, 0.7, 0.8]
    """
    return [fmean(accuracies[max(0, i + 1 - over) : i + 1]) for i in range(len(accuracies))]
