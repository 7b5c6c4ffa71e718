"""The pictures of the page, as data that the page itself holds."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from html import escape
from pathlib import Path

from numpy.typing import ArrayLike

from evenstep.runlog.document import embedded
from evenstep.runlog.picture import Numbers
from evenstep.runlog.plot import plot
from evenstep.runlog.run_log import RunLog
from evenstep.runlog.timeline import draw_timeline, has_timeline
from evenstep.runlog.usage_plot import draw_usage

_WORDS = {
    "The run": "Batch sizes, batch processing times and iteration times along the run",
    "The last iterations": "Work and waiting of each worker in the last iterations",
    "Speeds, CPU and memory": "Predicted and actual speeds, available CPU and memory",
}


def pictures(run_log: RunLog, series: Mapping[str, ArrayLike]) -> str:
    """Return the sections of the page that are pictures."""
    if run_log.num_iterations == 0:
        return "<h2>The run</h2><p>There is nothing to draw yet.</p>"
    draws: dict[str, Callable[[Path], None]] = {
        "The run": lambda path: plot(run_log, path, series),
        "The last iterations": lambda path: draw_timeline(run_log, path),
        "Speeds, CPU and memory": lambda path: draw_usage(run_log, Numbers.of(run_log, {}), path),
    }
    if not has_timeline(run_log):
        del draws["The last iterations"]
    try:
        return "\n".join(f"<h2>{title}</h2>{_image(title, draw)}" for title, draw in draws.items())
    except ImportError as missing:
        return f"<h2>The run</h2><p>There is no picture: {escape(str(missing))}</p>"


def _image(title: str, draw: Callable[[Path], None]) -> str:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "picture.svg")
        draw(path)
        return embedded(path.read_bytes(), _WORDS[title])
