"""The output of `evenstep simulate`: a live table while it runs, the figures at the end."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table
from rich.text import Text

from evenstep.cli.workers_table import console, workers_table
from evenstep.core import Plan
from evenstep.simulator.clusters.cluster import Cluster
from evenstep.simulator.engine.iteration import Iteration
from evenstep.simulator.engine.simulation import Setup, SimulationOutcome, T, Watcher

_LIVE_EVERY = 0.1
"""Seconds between two updates of the live table."""

FIGURES: dict[str, tuple[str, str]] = {
    "settle_5": ("iterations until within 5 % of the noise-free optimum", "{}"),
    "settle_2": ("... within 2 %", "{}"),
    "settle_5_after": ("after the change: within 5 %", "{}"),
    "settle_2_after": ("... within 2 %", "{}"),
    "waste": ("lost against the noise-free optimum", "{:.2%}"),
    "realised": ("... with its sizes on the same noise", "{:.2%}"),
    "waiting_share": ("workers' time spent waiting", "{:.1%}"),
    "changes_per_100": ("size changes per 100 steady iterations", "{:.1f}"),
    "overruns": ("batches that did not fit into memory", "{}"),
    "time_over_oracle": ("time / the optimum with known noise (oracle)", "{:.3f}"),
    "time_over_bsp": ("time / plain BSP's", "{:.3f}"),
    "rmse": ("error of predicted speeds (RMSE, samples/s)", "{:.2f}"),
}
"""The figures that are printed: description and format."""


class Display:
    """Shows on a terminal how far the simulation is; does nothing without one."""

    def __init__(self, num_seeds: int) -> None:
        console = Console(stderr=True)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        self._progress = Progress(*columns, TimeElapsedColumn(), console=console)
        self._seeds = self._progress.add_task("seeds", total=num_seeds, visible=num_seeds > 1)
        self._part = self._progress.add_task("")
        self._total: int | None = None
        self._table: Table | None = None
        self._shown_at = 0.0
        self._live: Live | None = None
        if console.is_terminal:
            self._live = Live(self._progress, console=console, transient=True)

    def set_up(self, num_done: int) -> None:
        """Show that the cluster of the next seed is made."""
        self._progress.update(self._seeds, completed=num_done)
        self._total, self._table = None, None
        self._begin("making the cluster")

    def watch(self, cluster: Cluster, setup: Setup, seed: int) -> Watcher:
        """Return a function that takes every iteration of a seed's run."""
        self._total = cluster.iterations

        def watch(iteration: Iteration, plan: Plan) -> None:
            done = iteration.number + 1
            if self._live is not None and (self._is_due() or done == cluster.iterations):
                title = f"{_title(cluster, setup)}, seed {seed}, iteration {done}"
                self._table = workers_table(
                    title, cluster.workers, iteration.sizes, iteration.times, iteration.time
                )

        return watch

    def track(self, part: str, iterations: Iterable[T]) -> Iterator[T]:
        """Pass on the iterations of one part of the simulation, and count them."""
        self._begin(part)
        for done, iteration in enumerate(iterations, start=1):
            yield iteration
            self._progress.update(self._part, completed=done)
            if self._is_due() or done == self._total:
                self._show()

    def _begin(self, part: str) -> None:
        self._progress.remove_task(self._part)
        self._part = self._progress.add_task(part, total=self._total)
        self._show()

    def _is_due(self) -> bool:
        return time.monotonic() >= self._shown_at + _LIVE_EVERY

    def _show(self) -> None:
        if self._live is not None:
            self._shown_at = time.monotonic()
            # The bars are above the table, whose end a low terminal cuts off.
            self._live.update(Group(self._progress, self._table) if self._table else self._progress)

    def __enter__(self) -> Display:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._live is not None:
            self._live.stop()


def headline(seeds: Sequence[Mapping[str, Any]], scored_from: int) -> dict[str, Any]:
    """Return the gain and the distance to the optimum: medians and ranges over seeds, in words too.

    >>> seed = {"time_over_bsp": 0.4, "time_over_oracle": 1.05, "waiting_share": 0.1}
    >>> headline([seed], scored_from=0)["gain"]
    {'value': 2.5, 'low': 2.5, 'high': 2.5}
    """
    result: dict[str, Any] = {
        "gain": _ranged([1 / seed["time_over_bsp"] for seed in seeds]),
        "above_optimum": _ranged([seed["time_over_oracle"] - 1 for seed in seeds]),
        "waiting_share": _ranged([seed["waiting_share"] for seed in seeds]),
        "optimum_is": "oracle",
        "from_iteration": scored_from,
    }
    which = f"Simulated{_since(scored_from)}"
    if len(seeds) > 1:
        which += f", medians of {len(seeds)} seeds with their range"
    gain = _worded(result["gain"], "{:.2f}")
    above = _worded(result["above_optimum"], "{:.1%}")
    faster = f"{gain} times {'faster than' if result['gain']['value'] > 1 else 'as fast as'}"
    result["sentence"] = (
        f"{which}: {faster} plain BSP, {above} above the optimum (the oracle's, which knows the "
        "noise of each coming iteration)."
    )
    return result


def _since(iteration: int) -> str:
    return f", from iteration {iteration} on" if iteration else ", over all iterations"


def _ranged(values: Sequence[float]) -> dict[str, float]:
    return {"value": median(values), "low": min(values), "high": max(values)}


def _worded(ranged: Mapping[str, float], form: str) -> str:
    value, low, high = (form.format(ranged[name]) for name in ("value", "low", "high"))
    return value if low == high else f"{value} ({low} to {high})"


def print_workers(outcome: SimulationOutcome, setup: Setup, seed: int) -> None:
    """Print the final size of each worker, and its time over the last tenth of the run."""
    last = max(1, len(outcome.sizes) // 10)
    times = outcome.times[-last:].mean(axis=0)
    title = f"{_title(outcome.cluster, setup)}, seed {seed}: the last {last} iterations (simulated)"
    iteration_time = float(outcome.realised[-last:].mean())
    table = workers_table(title, outcome.cluster.workers, outcome.sizes[-1], times, iteration_time)
    console().print(table)


def print_figures(result: Mapping[str, Any], cluster: Cluster) -> None:
    """Print the gain in a sentence, and the figures of a seed, or the medians of several."""
    several = len(result["seeds"]) > 1
    figures = result["medians"] if several else result["seeds"][0]
    median = f", medians of {len(result['seeds'])} seeds" if several else ""
    scored = _since(result["headline"]["from_iteration"])
    table = Table(title=f"figures (simulated{median}{scored})", title_justify="left")
    table.add_column("figure")
    table.add_column("value", justify="right")
    for name, (words, form) in FIGURES.items():
        changes = cluster.changes_at is not None and cluster.changes_at < cluster.iterations
        if name.endswith("_after") and not changes:
            continue
        value = figures[name]
        table.add_row(words, "never" if value is None and "settle" in name else _form(form, value))
    out = console()
    out.print(Text(result["headline"]["sentence"], style="bold"), soft_wrap=not out.is_terminal)
    out.print(table)


def _form(form: str, value: float | None) -> str:
    return "-" if value is None else form.format(value)


def _title(cluster: Cluster, setup: Setup) -> str:
    predictor = f" x {setup.predictor}" if setup.predictor else ""
    delay = f", {setup.delay} late" if setup.delay else ""
    return f"{cluster.name}: {cluster.num_workers} workers, {setup.policy}{predictor}{delay}"
