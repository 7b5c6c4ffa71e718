"""A run of an engine: what it takes to make updates, and how good the model gets by them.

One run gives hardware efficiency (time per update), statistical efficiency (updates to a target)
and their product, the time to the target. An update is n gradients, whether the scheme averages
them or applies them one by one; the paper's per-update time is the time per gradient.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from evenstep.core.short_form import require_whole
from evenstep.simulator.engine.iteration import Arrival, Fault
from evenstep.simulator.schemes import Scheme

if TYPE_CHECKING:
    import torch

    from evenstep.simulator.workloads.workload import Evaluation


class Engine(Protocol):
    """Runs workers under a scheme, in virtual time or for real."""

    clock: str
    """`virtual`, `real`, or `emulated`: workers that are real take the times of a cluster."""

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
        """Workers and shards that failed so far."""
        ...

    def arrivals(self) -> Iterator[Arrival]: ...


class Evaluator(Protocol):
    """Knows the model, and tells how good it is right now."""

    @property
    def parameters(self) -> list[torch.Tensor]: ...

    def evaluate(self) -> Evaluation: ...


@dataclass(frozen=True)
class Point:
    """How good the model was after so many updates; evaluating stops the clock."""

    updates: int
    time: float
    """Seconds of the engine's clock."""
    evaluation: Evaluation


@dataclass(frozen=True)
class Progress:
    """One more update is complete."""

    updates: int
    time: float
    """Seconds of the engine's clock."""
    point: Point | None
    """Where the model was evaluated now."""


class Run:
    """Lets an engine run, and keeps what came out.

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
        """`evaluate_every` counts in updates; without an evaluator there are no points."""
        require_whole("evaluate_every", evaluate_every)
        self._engine = engine
        self._arrivals = engine.arrivals()
        self._evaluator = evaluator
        self._evaluate_every = evaluate_every
        self.num_counted = engine.scheme.num_counted
        """n: gradients in one update."""
        self.times: list[float] = []
        """When each update was complete, in seconds of the engine's clock."""
        self.points: list[Point] = []
        self.staleness = Counter[int]()
        """How many gradients used were so many updates of the server old."""
        self.num_samples = 0
        """Samples in all gradients used."""

    @property
    def parameters(self) -> list[torch.Tensor]:
        """The parameters of now, then the buffers; they must not be changed."""
        assert self._evaluator is not None, "timing-only"
        return self._evaluator.parameters

    @property
    def clock(self) -> str:
        """What its times are: `virtual`, `emulated` or `real`."""
        return self._engine.clock

    @property
    def faults(self) -> Sequence[Fault]:
        """Workers and shards that failed, and what was done about it."""
        return self._engine.faults

    @property
    def num_dropped(self) -> int:
        """Gradients that were computed, or begun, and did not count."""
        return self._engine.num_dropped

    def advance(self, updates: int, target: float | None = None) -> Iterator[Progress]:
        """Yield after every update, until there are so many more or the accuracy is reached."""
        if not self.points:
            self._evaluate()
        last = len(self.times) + updates
        while len(self.times) < last:
            self._make_update()
            count = len(self.times)
            due = count % self._evaluate_every == 0 or count == last
            point = self._evaluate() if due else None
            yield Progress(count, self.times[-1], point)
            if point and target is not None and point.evaluation.accuracy >= target:
                return

    def per_update_time(self, skip: int = 0) -> float:
        """Return the average time per gradient received, after the first updates.

        That is the paper's per-update time (section 5.1).
        """
        start = self.times[skip - 1] if skip else 0.0
        return (self.times[-1] - start) / ((len(self.times) - skip) * self.num_counted)

    def reached(self, target: float) -> Point | None:
        """Return the first point with this accuracy; None where it was never reached."""
        reached = (point for point in self.points if point.evaluation.accuracy >= target)
        return next(reached, None)

    def _make_update(self) -> None:
        """Let the engine run until another n gradients have been used."""
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
