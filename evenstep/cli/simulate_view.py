"""The output of `evenstep simulate`: a live table while it runs, the figures at the end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from evenstep.cli.workers_table import console, workers_table
from evenstep.core import Plan
from evenstep.simulator.clusters.cluster import Cluster
from evenstep.simulator.engine.iteration import Iteration
from evenstep.simulator.engine.simulation import Setup, SimulationOutcome, Watcher

_LIVE_EVERY = 5
"""Iterations between two updates of the live table."""

FIGURES: dict[str, tuple[str, str]] = {
    "settle_5": ("iterations until within 5 % of the optimum", "{}"),
    "settle_2": ("... within 2 %", "{}"),
    "settle_5_after": ("after the change: within 5 %", "{}"),
    "settle_2_after": ("... within 2 %", "{}"),
    "waste": ("lost against the optimum, without noise", "{:.2%}"),
    "realised": ("lost against the optimum, with noise", "{:.2%}"),
    "waiting_share": ("workers' time spent waiting", "{:.1%}"),
    "changes_per_100": ("size changes per 100 steady iterations", "{:.1f}"),
    "overruns": ("batches that did not fit into memory", "{}"),
    "time_over_oracle": ("time / the oracle's, which knows the noise", "{:.3f}"),
    "time_over_bsp": ("time / plain BSP's", "{:.3f}"),
    "rmse": ("error of predicted speeds (RMSE, samples/s)", "{:.2f}"),
}
"""The figures that are printed: description and format."""


class Display:
    """Shows the run live on a terminal; does nothing without one."""

    def __init__(self, cluster: Cluster, setup: Setup, num_seeds: int, quiet: bool) -> None:
        self._cluster = cluster
        self._setup = setup
        console = Console(stderr=True)
        self._progress = Progress(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), console=console
        )
        self._seeds = self._progress.add_task("seeds", total=num_seeds, visible=num_seeds > 1)
        self._run = self._progress.add_task("iterations", total=cluster.iterations)
        self._live: Live | None = None
        if not quiet and console.is_terminal:
            self._live = Live(self._progress, console=console, transient=True)

    def watch(self, seed: int) -> Watcher:
        """Return a function that takes every iteration of a seed's run."""
        self._progress.reset(self._run)

        def watch(iteration: Iteration, plan: Plan) -> None:
            done = iteration.number + 1
            if self._live is not None and (
                done % _LIVE_EVERY == 0 or done == self._cluster.iterations
            ):
                self._progress.update(self._run, completed=done)
                title = f"{_title(self._cluster, self._setup)}, seed {seed}, iteration {done}"
                table = workers_table(
                    title, self._cluster.workers, iteration.sizes, iteration.times, iteration.time
                )
                self._live.update(Group(table, self._progress))
            if done == self._cluster.iterations:
                self._progress.advance(self._seeds)

        return watch

    def __enter__(self) -> Display:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._live is not None:
            self._live.stop()


def print_workers(outcome: SimulationOutcome, setup: Setup, seed: int) -> None:
    """Print the final size of each worker, and its time over the last tenth of the run."""
    last = max(1, len(outcome.sizes) // 10)
    times = outcome.times[-last:].mean(axis=0)
    title = f"{_title(outcome.cluster, setup)}, seed {seed}: the last {last} iterations (simulated)"
    iteration_time = float(outcome.realised[-last:].mean())
    table = workers_table(title, outcome.cluster.workers, outcome.sizes[-1], times, iteration_time)
    console().print(table)


def print_figures(result: Mapping[str, Any], cluster: Cluster) -> None:
    """Print the figures of a seed, or the medians of several."""
    several = len(result["seeds"]) > 1
    figures = result["medians"] if several else result["seeds"][0]
    median = f", medians of {len(result['seeds'])} seeds" if several else ""
    scored = f", from iteration {cluster.score_from} on" if cluster.score_from else ""
    table = Table(title=f"figures (simulated{median}{scored})", title_justify="left")
    table.add_column("figure")
    table.add_column("value", justify="right")
    for name, (words, form) in FIGURES.items():
        if name.endswith("_after") and cluster.changes_at is None:
            continue
        value = figures[name]
        table.add_row(words, "never" if value is None and "settle" in name else _form(form, value))
    console().print(table)


def _form(form: str, value: float | None) -> str:
    return "-" if value is None else form.format(value)


def _title(cluster: Cluster, setup: Setup) -> str:
    predictor = f" x {setup.predictor}" if setup.predictor else ""
    delay = f", {setup.delay} late" if setup.delay else ""
    return f"{cluster.name}: {cluster.num_workers} workers, {setup.policy}{predictor}{delay}"
