"""The log of a simulated run: writes a run log, and draws a picture of the run."""

from __future__ import annotations

import numpy as np

from evenstep.core import UNLIMITED, Plan
from evenstep.insight.plots.plot import Answer, plot
from evenstep.runlog import Event, Header, IterationRow, RunLogBuilder, RunLogWriter
from evenstep.runlog.plan_events import PlanEvents
from evenstep.simulator.clusters.cluster import Cluster
from evenstep.simulator.engine.iteration import Iteration
from evenstep.simulator.engine.simulation import Setup, SimulationOutcome, predicted_speeds


class SimulationLog:
    """Remembers each iteration, and writes it to a run log if there is one."""

    def __init__(self, cluster: Cluster, setup: Setup, seed: int, log: str | None) -> None:
        header = Header(
            source="simulated",
            job=cluster.name,
            workers=cluster.workers,
            total=cluster.total,
            policy=setup.policy,
            predictor=setup.predictor or "none",
            seed=seed,
            settings={"delay": setup.delay},
        )
        self._cluster = cluster
        self._plan_events = PlanEvents()
        self._builder = RunLogBuilder()
        self._builder.add(header)
        self._writer = RunLogWriter(log, header) if log else None

    def __call__(self, iteration: Iteration, plan: Plan) -> None:
        for event in self._plan_events.new_in(plan, self._cluster.workers, iteration.number):
            self._event(event)
        if iteration.number == self._cluster.changes_at:
            self._event(Event("note", iteration.number, text="scheduled change"))
        self._row(self._row_of(iteration, plan))

    def plot(self, path: str, outcome: SimulationOutcome) -> None:
        """Draw the run, with the iteration times of plain BSP and the oracle."""
        series = {"plain BSP": outcome.bsp, "oracle": outcome.oracle}
        run_log = self._builder.build()
        plot(run_log, path, series, Answer.of(run_log, outcome.bsp))

    def __enter__(self) -> SimulationLog:
        return self

    def __exit__(self, *error: object) -> None:
        if self._writer is not None:
            self._writer.close()

    def end(self, iterations: int) -> None:
        """Add the event that ends the run."""
        self._event(Event("end", iterations))

    def _row_of(self, iteration: Iteration, plan: Plan) -> IterationRow:
        worked = iteration.sizes > 0
        times = np.where(worked, iteration.times, np.nan)
        cluster = self._cluster
        return IterationRow(
            iteration=iteration.number,
            plan=plan.number,
            start=iteration.start,
            batch_sizes=iteration.sizes,
            times=times,
            waiting=iteration.time - iteration.times,
            predicted_speeds=predicted_speeds(plan),
            cpu=iteration.at.cpu,
            memory=iteration.at.memory,
            device_memory=np.where(worked, cluster.device_memory(iteration.sizes), np.nan),
            caps=np.minimum(cluster.cap, UNLIMITED),
        )

    def _event(self, event: Event) -> None:
        self._builder.add(event)
        if self._writer is not None:
            self._writer.event(event)

    def _row(self, row: IterationRow) -> None:
        self._builder.add(row)
        if self._writer is not None:
            self._writer.iteration(row)
