"""How `evenstep watch` looks: a live table on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import math
import time

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from evenstep.cli.watched import Watched
from evenstep.cli.workers_table import workers_table
from evenstep.runlog.picture import readable
from evenstep.runlog.words import duration

_QUIET = 20.0
"""Seconds without an iteration that are worth a word."""


class WatchView:
    """Shows the newest state of a run; the last one stays on the screen."""

    def __init__(self, every: float) -> None:
        self._every = every
        self._console = Console()
        self._live: Live | None = None
        self._told_at = -math.inf
        self._told = -1
        self._problem: str | None = None
        self._moved_at = time.monotonic()
        self._last_iteration = -1
        if self._console.is_terminal:
            self._live = Live(console=self._console, refresh_per_second=4, transient=True)

    def show(self, watched: Watched, problem: str | None) -> None:
        """Show the state, and what is wrong with where it comes from."""
        now = time.monotonic()
        if watched.latest.iteration != self._last_iteration:
            self._last_iteration, self._moved_at = watched.latest.iteration, now
        if self._live is not None:
            self._live.update(self._picture(watched, problem, now))
            return
        if problem != self._problem:
            self._problem = problem
            self._say(problem or "it is back")
        if now >= self._told_at + self._every:
            self._line(watched, now)

    def end(self, watched: Watched) -> None:
        """Leave the last state on the screen, and say that the run has ended."""
        if self._live is not None:
            self._live.update(Text())
            self._console.print(self._picture(watched, None, self._moved_at))
        elif watched.latest.iteration != self._told:
            self._line(watched, time.monotonic())
        if watched.ended:
            why = f": {readable(watched.reason, 60)}" if watched.reason else ""
            self._say(f"The run has ended{why}.")

    def __enter__(self) -> WatchView:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._live is not None:
            self._live.stop()

    def _say(self, text: str) -> None:
        self._console.print(Text(text), soft_wrap=True)

    def _line(self, watched: Watched, now: float) -> None:
        row = watched.latest.row
        if row is None or watched.latest.iteration == self._told:
            return
        self._told, self._told_at = watched.latest.iteration, now
        sizes = "/".join(map(str, row.batch_sizes.tolist()[:16]))
        more = "/..." if row.num_workers > 16 else ""
        self._say(f"{_title(watched)}; batch sizes {sizes}{more}")

    def _picture(self, watched: Watched, problem: str | None, now: float) -> RenderableType:
        row = watched.latest.row
        if row is None:
            return Text(problem or "waiting for the first iteration ...")
        table = workers_table(
            _title(watched), [readable(name, 40) for name in watched.latest.workers],
            row.batch_sizes, row.times, watched.iteration_time, row.waiting, row.cpu,
        )  # fmt: skip
        quiet = now - self._moved_at
        remark = problem or (f"nothing new for {quiet:.0f} s" if quiet > _QUIET else "")
        return Group(table, Text(remark, style="yellow")) if remark else table


def _title(watched: Watched) -> str:
    parts = [f"{readable(watched.name, 60)}: iteration {watched.latest.iteration}"]
    parts.append(f"{duration(watched.iteration_time)} now")
    if math.isfinite(watched.plain):
        parts.append(f"plain BSP about {duration(watched.plain)}")
    if math.isfinite(watched.optimum):
        parts.append(f"optimum about {duration(watched.optimum)}")
    parts.append(f"waiting {watched.latest.waiting_share:.0%}")
    if watched.num_missed:
        parts.append(f"{watched.num_missed} rows missed")
    return ", ".join(parts)
