"""How the demo looks while it runs: a live table on a terminal, a line now and then elsewhere."""

from __future__ import annotations

from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

from evenstep.cli.watched import Latest, iteration_time
from evenstep.cli.workers_table import workers_table
from evenstep.core.arrays import Floats


class DemoView:
    """Shows one run after the other; each leaves its last state on the screen."""

    def __init__(self, num_iterations: int, quiet: bool) -> None:
        self._num_iterations = num_iterations
        self._quiet = quiet
        self._console = Console()
        self._live: Live | None = None
        self._told = 0
        if self._console.is_terminal and not quiet:
            self._live = Live(console=self._console, refresh_per_second=8, transient=True)

    def say(self, text: str) -> None:
        """Print a line above the table."""
        if not self._quiet:
            self._console.print(Text(text), soft_wrap=True)

    def show(self, name: str, latest: Latest) -> None:
        """Show the newest state of a run."""
        if latest.row is None or self._quiet:
            return
        if self._live is not None:
            self._live.update(self._table(name, latest))
        elif latest.iteration + 1 >= self._told + max(1, self._num_iterations // 5):
            self._told = latest.iteration + 1
            self.say(_line(name, latest, self._num_iterations))

    def end(self, name: str, latest: Latest) -> None:
        """Leave the last state of a run on the screen."""
        self._told = 0
        if self._live is not None and latest.row is not None:
            self._console.print(self._table(name, latest))
            self._live.update(Text())

    def __enter__(self) -> DemoView:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._live is not None:
            self._live.update(Text())
            self._live.stop()

    def _table(self, name: str, latest: Latest) -> RenderableType:
        assert latest.row is not None and latest.header is not None
        row = latest.row
        time = iteration_time(row)
        title = (
            f"{name} ({latest.header.source}): iteration {latest.iteration + 1}/"
            f"{self._num_iterations}, {1e3 * time:.0f} ms, waiting {latest.waiting_share:.0%}"
        )
        return workers_table(title, latest.workers, row.batch_sizes, row.times, time)


def _line(name: str, latest: Latest, num_iterations: int) -> str:
    assert latest.row is not None
    row = latest.row
    sizes = "/".join(map(str, row.batch_sizes.tolist()))
    return (
        f"{name}: iteration {latest.iteration + 1}/{num_iterations}, batch sizes {sizes}, "
        f"times {_milliseconds(row.times)} ms, waiting {latest.waiting_share:.0%}"
    )


def _milliseconds(times: Floats) -> str:
    return "/".join(f"{1e3 * time:.0f}" for time in times.tolist())
