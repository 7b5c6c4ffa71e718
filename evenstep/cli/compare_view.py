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
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars
from rich.table import Table
from rich.text import Text

from evenstep.simulator.engine.comparison import Comparison
from evenstep.simulator.engine.comparison_figures import (
    CONFIDENCE,
    RANKED,
    ComparisonFigures,
    best_schemes,
    coverage,
    normalised,
    seeds_left_out,
    summary,
)
from evenstep.simulator.engine.registry import SECONDS
from evenstep.simulator.engine.run import SMOOTHED_OVER, Progress
from evenstep.simulator.engine.scheme_specs import SEQUENTIAL_BSP, SchemeSpec

_LIVE_EVERY = 0.1
"""Seconds between two updates of the live table."""
_WIDTH = 120
"""Width of the result, if there is no terminal."""
LOWER, HIGHER = "lower is better", "higher is better"
_BY = {
    "per_update_over_bsp": "time per update",
    "updates_over_bsp": "updates to {target}",
    "time_over_bsp": "time to {target}",
    "final_accuracy": "final accuracy",
}
"""The figures by which schemes are ranked, in words."""


@contextmanager
def displayed(
    comparison: Comparison, contenders: Sequence[SchemeSpec], num_seeds: int
) -> Iterator[Display]:
    """Show the runs live on a terminal; show nothing without one."""
    console = Console(stderr=True)
    live = Live(console=console, transient=True) if console.is_terminal else None
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
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        self._bars = Bars(*columns, TimeRemainingColumn())
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
    """Print the setting, the figures (of one seed, or medians of several), and the best schemes."""
    settings = result["settings"]
    console = Console()
    if not console.is_terminal:
        console = Console(width=_WIDTH, file=sys.stdout)
    for line in what_ran(settings):
        console.print(Text(line), soft_wrap=True)
    for line in verdicts(result).values():
        console.print(Text(line, style="bold"), soft_wrap=True)
    console.print(_table(result))
    for line in [*_definitions(result), *_faults(result)]:
        console.print(Text(line), soft_wrap=True)


def _definitions(result: Mapping[str, Any]) -> list[str]:
    """Return the meaning of the figures, in words."""
    settings = result["settings"]
    n = settings["num_workers"]
    lines = [
        f"An update is {n} gradients, one per worker, under every scheme: BSP applies their "
        f"average; ASP and SSP apply each as it comes, with 1/{n} of the learning rate."
    ]
    if settings["target"] is not None:
        lines.append(
            f"{percent(settings['target'])} is reached when the mean of the last "
            f"{settings['smoothed_over']} evaluations is (one every {settings['evaluate_every']} "
            "updates)."
        )
    if len(settings["seeds"]) > 1:
        lines.append(
            f"In parentheses: the interval that covers the median with a probability of "
            f"{settings['interval_covers']:.0%}."
        )
    labels = [scheme["scheme"].partition(":")[0] for scheme in result["schemes"]]
    if "flexrr" in labels and SEQUENTIAL_BSP not in labels:
        lines.append(
            f"FlexRR processes one sample at a time; --schemes flexrr,{SEQUENTIAL_BSP} divides it "
            "by a BSP that does the same, as in the paper."
        )
    return lines


def verdicts(result: Mapping[str, Any]) -> dict[str, str]:
    """Return the best scheme by each figure, in words; none is called so if intervals overlap."""
    settings = result["settings"]
    if result["best"] is None:
        least = next(count for count in range(1, 100) if coverage(count, 0) >= CONFIDENCE)
        text = (
            f"No scheme is called the best: {CONFIDENCE:.0%} intervals need at least {least} "
            f"seeds, got {len(settings['seeds'])}."
        )
        return {"": text}
    target, schemes = settings["target"], result["schemes"]
    what = {name: by.format(target=percent(target or 0.0)) for name, by in _BY.items()}
    return {
        name: f"Best {what[name]}: {_verdict(schemes, name, labels)}."
        for name, labels in result["best"].items()
    }


def _verdict(schemes: Sequence[Mapping[str, Any]], name: str, labels: Sequence[str]) -> str:
    if not labels:
        return "none, BSP did not reach it in most seeds, so that there are no ratios"
    if len(labels) > 1:
        some = f"{', '.join(labels[:-1])} and {labels[-1]}"
        if len(labels) == len(schemes):
            some = "all schemes"
        return f"undecided, the intervals of {some} overlap"
    best = next(scheme for scheme in schemes if scheme["scheme"] == labels[0])
    value, *further = figure(best, name).splitlines()
    over = "" if name == "final_accuracy" else " of BSP's"
    return " ".join([f"{labels[0]}, {value}{over}", *further])


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
    since = f"; times per update from update {counted} on" if counted else ""
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
    columns = {"time_per_update": "time\nper update", "per_update_over_bsp": "/ BSP"}
    if any("per_update_over_sequential_bsp" in each["medians"] for each in result["schemes"]):
        columns["per_update_over_sequential_bsp"] = "/ sequential\nBSP"
    if target is not None:
        columns |= {
            "updates_to_target": f"updates\nto {percent(target)}",
            "updates_over_bsp": "/ BSP",
            "time_to_target": f"time\nto {percent(target)}",
            "time_over_bsp": "/ BSP",
        }
    if result["settings"]["workload"] is not None:
        columns["final_accuracy"] = "final\naccuracy"
    table = Table(show_lines=len(result["settings"]["seeds"]) > 1)
    table.add_column("scheme", overflow="fold")
    for name, head in columns.items():
        better = HIGHER if name == "final_accuracy" else LOWER
        words = f"{head}\n({better.replace(' is ', chr(10) + 'is ')})"
        table.add_column(words, justify="right", overflow="fold")
    for scheme in result["schemes"]:
        table.add_row(Text(scheme["scheme"]), *(figure(scheme, name) for name in columns))
    return table


def figure(scheme: Mapping[str, Any], name: str) -> str:
    """Return a figure of a scheme; of several seeds, with the interval of the median."""
    if name not in scheme["medians"]:
        return "-"
    median, (low, high) = scheme["medians"][name], scheme["intervals"][name]
    values = [seed[name] for seed in scheme["seeds"]]
    known = sum(value is not None for value in values)
    count = "" if known in (0, len(values)) else f"\nin {known} of {len(values)} seeds"
    if median is None:
        return ("-" if "over" in name else "not reached") + count
    form, unit = _form(name, median)
    text = form(median) + unit
    if len(values) > 1 and low != high:
        # With spaces, so that a narrow terminal breaks it into lines.
        text += f"\n({form(low)} to {'never' if high is None else form(high)})"
    return text + count


def _form(name: str, median: float) -> tuple[Callable[[float], str], str]:
    """Return how the values of a figure are written, and their unit."""
    if name == "final_accuracy":
        return lambda value: f"{100 * value:.1f}", "%"
    if name == "updates_to_target":
        return "{:.0f}".format, ""
    return ("{:.2f}".format, "") if "over" in name else _scaled(median)


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
    form, unit = _scaled(value)
    return form(value) + unit


def _scaled(value: float) -> tuple[Callable[[float], str], str]:
    """Return how times like this one are written, and their unit."""
    if value < 1:
        return lambda other: f"{1e3 * other:.3g}", " ms"
    return lambda other: f"{other:.3g}" if other < 1000 else f"{other:.0f}", " s"


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
    settings = _settings(comparison, seeds)
    return {"settings": settings, "schemes": schemes, "best": _best(settings, schemes)}


def _best(
    settings: Mapping[str, Any], schemes: list[dict[str, Any]]
) -> dict[str, list[str]] | None:
    """Return the schemes that may be the best by each figure; None with too few seeds."""
    if settings["interval_covers"] < CONFIDENCE:
        return None
    missing = {"updates_over_bsp", "time_over_bsp"} if settings["target"] is None else set()
    if settings["workload"] is None:
        missing.add("final_accuracy")
    return {name: best_schemes(schemes, name) for name in RANKED if name not in missing}


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
        "smoothed_over": SMOOTHED_OVER,
        "seeds": seeds,
        "interval_covers": coverage(len(seeds), seeds_left_out(len(seeds))),
    }
