"""The output of `evenstep compare`: a live table of the schemes, and the figures at the end."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
from rich.progress import Progress as Bars
from rich.table import Table
from rich.text import Text

from evenstep.simulator.engine.comparison import Comparison
from evenstep.simulator.engine.comparison_figures import ComparisonFigures, normalised, summary
from evenstep.simulator.engine.registry import SECONDS
from evenstep.simulator.engine.run import Progress
from evenstep.simulator.engine.scheme_specs import SchemeSpec

_LIVE_EVERY = 0.1
"""Seconds between two updates of the live table."""
_WIDTH = 120
"""Width of the result, if there is no terminal."""
_CAPTION = (
    "per update: average time until the server has received one more gradient, as in the paper; "
    "updates to a target have n gradients each"
)


@contextmanager
def displayed(
    comparison: Comparison, contenders: Sequence[SchemeSpec], num_seeds: int, quiet: bool
) -> Iterator[Display]:
    """Show the runs live on a terminal; show nothing without one, or with `quiet`."""
    console = Console(stderr=True)
    shown = not quiet and console.is_terminal
    live = Live(console=console, transient=True) if shown else None
    with nullcontext() if live is None else live:
        yield Display(comparison, contenders, num_seeds, live)


class Display:
    """The live table: updates, time and accuracy of each scheme so far."""

    def __init__(
        self,
        comparison: Comparison,
        contenders: Sequence[SchemeSpec],
        num_seeds: int,
        live: Live | None,
    ) -> None:
        self._time = SECONDS[comparison.engine.clock]
        self._contenders = contenders
        self._live = live
        self._bars = Bars(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        num_updates = comparison.num_updates(comparison.make_cluster(seed=0))
        self._runs = self._bars.add_task("runs", total=num_seeds * len(contenders))
        self._updates = self._bars.add_task("updates", total=num_updates)
        self._latest: dict[str, tuple[Progress, float | None]] = {}
        """The newest state of each scheme, with its last accuracy."""
        self._shown_at = 0.0
        self._title = ""

    def watch(self, contender: SchemeSpec, seed: int) -> Callable[[Progress], None]:
        """Return a function that takes every update of a run."""
        self._title = f"{contender.label}, seed {seed} ({self._time})"
        self._latest.pop(contender.label, None)

        def watch(progress: Progress) -> None:
            _, accuracy = self._latest.get(contender.label, (None, None))
            if progress.point is not None:
                accuracy = progress.point.evaluation.accuracy
            self._latest[contender.label] = (progress, accuracy)
            if self._live is not None and time.monotonic() >= self._shown_at + _LIVE_EVERY:
                self._show(progress)

        return watch if self._live is not None else _ignore

    def end(self, contender: SchemeSpec) -> None:
        """Note that a run has ended."""
        self._bars.advance(self._runs)
        if self._live is not None:
            self._show(self._latest[contender.label][0])

    def _show(self, progress: Progress) -> None:
        assert self._live is not None
        self._shown_at = time.monotonic()
        self._bars.update(self._updates, completed=progress.updates)
        table = Table(title=Text(self._title), title_justify="left")
        table.add_column("scheme")
        for column in ("updates", "time", "accuracy"):
            table.add_column(column, justify="right", min_width=9)
        for contender in self._contenders:
            table.add_row(Text(contender.label), *self._cells(contender))
        self._live.update(Group(table, self._bars))

    def _cells(self, contender: SchemeSpec) -> tuple[str, ...]:
        if contender.label not in self._latest:
            return ("",) * 3
        progress, accuracy = self._latest[contender.label]
        return str(progress.updates), seconds(progress.time), _accuracy(accuracy)


def _ignore(progress: Progress) -> None:
    pass


def print_result(result: Mapping[str, Any]) -> None:
    """Print the setting, and the figures: of one seed, or medians of several."""
    settings = result["settings"]
    console = Console()
    if not console.is_terminal:
        console = Console(width=_WIDTH, file=sys.stdout)
    for line in what_ran(settings):
        console.print(Text(line), soft_wrap=True)
    console.print(_table(result))
    for line in _faults(result):
        console.print(Text(line), soft_wrap=True)


def _faults(result: Mapping[str, Any]) -> list[str]:
    """Return a line for each worker or shard that failed."""
    return [
        f"{scheme['scheme']}, seed {seed['seed']}, {seconds(fault['time'])}: "
        f"{fault['who']} failed in iteration {fault['iteration']}: {fault['what']}"
        for scheme in result["schemes"]
        for seed in scheme["seeds"]
        for fault in seed["faults"]
    ]


def what_ran(settings: Mapping[str, Any]) -> list[str]:
    """Return the setting of a comparison, in words."""
    seeds = settings["seeds"]
    which = f"seed {seeds[0]}" if len(seeds) == 1 else f"medians of {len(seeds)} seeds"
    trained = "timing-only: nothing is trained"
    if settings["workload"] is not None:
        held = f", own data {settings['partition']}" if settings["partition"] else ""
        trained = f"{settings['workload']}{held}, {settings['optimizer']}"
    counted = settings["per_update_from"]
    since = f"; per-update times from update {counted} on" if counted else ""
    length = f"{settings['iterations']} updates"
    if settings["stops_at_target"]:
        length = f"until {percent(settings['target'])}, {length} at most"
    return [
        f"{settings['cluster_name']}: {settings['num_workers']} workers, "
        f"{settings['total']} samples an update; {trained}",
        f"{which}, {length}{since}; all times: {settings['time']}",
    ]


def _table(result: Mapping[str, Any]) -> Table:
    target = result["settings"]["target"]
    trained = result["settings"]["workload"] is not None
    sequential = any("per_update_over_sequential_bsp" in s["medians"] for s in result["schemes"])
    several = len(result["settings"]["seeds"]) > 1
    columns: list[tuple[str, Callable[[Mapping[str, Any]], str]]] = [
        ("per update", lambda s: seconds(s["medians"]["per_update_time"])),
        ("/ BSP", lambda s: _ratio(s, "per_update_over_bsp", several)),
    ]
    if sequential:
        columns.append(
            ("/ sequential BSP", lambda s: _ratio(s, "per_update_over_sequential_bsp", several))
        )
    if target is not None:
        columns += [
            (f"updates to {percent(target)}", lambda s: _reached(s, "updates_to_target", "{:.0f}")),
            ("/ BSP", lambda s: _ratio(s, "updates_over_bsp", several)),
            (f"time to {percent(target)}", lambda s: _reached(s, "time_to_target", None)),
            ("/ BSP", lambda s: _ratio(s, "time_over_bsp", several)),
        ]
    if trained:
        columns.append(("final accuracy", lambda s: _accuracy(s["medians"]["final_accuracy"])))
    table = Table(caption=_CAPTION, caption_justify="left")
    table.add_column("scheme", overflow="fold")
    for name, _ in columns:
        table.add_column(name, justify="right")
    for scheme in result["schemes"]:
        table.add_row(Text(scheme["scheme"]), *(cell(scheme) for _, cell in columns))
    return table


def _ratio(scheme: Mapping[str, Any], name: str, several: bool) -> str:
    """Return a ratio, with its spread over several seeds."""
    median = scheme["medians"].get(name)
    if median is None:
        return "-"
    low, high = scheme["spread"][name]
    if not several or low == high:
        return f"{median:.2f}"
    return f"{median:.2f} ({low:.2f}..{'-' if high is None else f'{high:.2f}'})"


def _reached(scheme: Mapping[str, Any], name: str, form: str | None) -> str:
    """Return a figure of reaching the target, with the number of seeds that reached it."""
    median = scheme["medians"][name]
    reached = sum(seed[name] is not None for seed in scheme["seeds"])
    count = "" if reached == len(scheme["seeds"]) else f" ({reached} of {len(scheme['seeds'])})"
    if median is None:
        return "not reached" + (count if reached else "")
    return (form.format(median) if form else seconds(median)) + count


def _accuracy(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def percent(share: float) -> str:
    """Return a share in percent.

    >>> percent(0.95), percent(0.925)
    ('95%', '92.5%')
    """
    return f"{100 * share:.6g}%"


def seconds(value: float) -> str:
    """Return a time in a readable unit.

    >>> seconds(0.01234), seconds(12.345), seconds(1234.5)
    ('12.3 ms', '12.3 s', '1234 s')
    """
    if value < 1:
        return f"{1e3 * value:.3g} ms"
    return f"{value:.3g} s" if value < 1000 else f"{value:.0f} s"


def result_of(
    comparison: Comparison,
    contenders: list[SchemeSpec],
    seeds: list[int],
    figures: list[dict[str, ComparisonFigures]],
) -> dict[str, Any]:
    """Return the settings, and the figures of every scheme and seed."""
    schemes = []
    for contender in contenders:
        rows = [
            {"seed": seed, **normalised(contender, of_seed)}
            for seed, of_seed in zip(seeds, figures, strict=True)
        ]
        own = [of_seed[contender.label] for of_seed in figures]
        further = [{"curve": one.curve, "faults": list(map(asdict, one.faults))} for one in own]
        schemes.append(
            {
                "scheme": contender.label,
                **_details(comparison, contender, seeds[0]),
                **summary(rows),
                "seeds": [{**row, **more} for row, more in zip(rows, further, strict=True)],
            }
        )
    return {"settings": _settings(comparison, seeds), "schemes": schemes}


def _details(comparison: Comparison, contender: SchemeSpec, seed: int) -> dict[str, Any]:
    cluster = comparison.make_cluster(seed, contender)
    setup = comparison.setup(contender, cluster)
    return {
        "workers": list(cluster.workers),
        "total": cluster.total,
        "policy": setup.policy,
        "predictor": setup.predictor,
        "weighted": contender.weighted,
    }


def _settings(comparison: Comparison, seeds: list[int]) -> dict[str, Any]:
    cluster = comparison.make_cluster(seeds[0])
    workload = comparison.workload
    return {
        "clock": comparison.engine.clock,
        "time": SECONDS[comparison.engine.clock],
        "cluster": comparison.cluster,
        "cluster_name": cluster.name,
        "num_workers": cluster.num_workers,
        "total": cluster.total,
        "noisy": comparison.noisy,
        "workload": None if workload is None else workload.name,
        "optimizer": None if workload is None else comparison.optimizer,
        "partition": comparison.partition,
        "shards": comparison.num_shards,
        "target": comparison.target,
        "iterations": comparison.num_updates(cluster),
        "stops_at_target": comparison.iterations is None and comparison.target is not None,
        "per_update_from": comparison.scored_from(cluster),
        "evaluate_every": comparison.evaluate_every,
        "seeds": seeds,
    }
