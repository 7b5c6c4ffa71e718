"""Drawing: the style of the pictures, and the formats they can be saved in."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evenstep.errors import InvalidSetting
from evenstep.insight.plots.palette import LIGHT

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.transforms import Transform

FORMATS = (".png", ".svg")

Target = Path | BytesIO
"""A file to draw into, or a stream."""

_STYLE: dict[Any, Any] = {
    "axes.axisbelow": True,
    "axes.edgecolor": LIGHT.rule,
    "axes.facecolor": LIGHT.back,
    "axes.grid": True,
    "axes.labelcolor": LIGHT.pale,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "figure.facecolor": LIGHT.back,
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9,
    "grid.color": LIGHT.grid,
    "grid.linewidth": 0.6,
    "hatch.linewidth": 0.6,
    "legend.frameon": False,
    "legend.fontsize": 8,
    # Text stays text: it can be searched, and takes the font of a page.
    "svg.fonttype": "none",
    "svg.hashsalt": "evenstep",
    "text.color": LIGHT.ink,
    # A name with dollar signs is a name, not a formula.
    "text.parse_math": False,
    "text.usetex": False,
    "xtick.color": LIGHT.rule,
    "xtick.labelcolor": LIGHT.pale,
    "ytick.color": LIGHT.rule,
    "ytick.labelcolor": LIGHT.pale,
}

_NO_METADATA = {"Creator": None, "Date": None, "Format": None, "Type": None}


def check_format(path: str | os.PathLike[str]) -> None:
    """Raise InvalidSetting unless the file name ends in one of the formats."""
    if Path(path).suffix.lower() not in FORMATS:
        raise InvalidSetting(f"a plot must be a {' or '.join(FORMATS)} file, got {str(path)!r}")


@contextmanager
def drawing(changes: Mapping[Any, Any]) -> Iterator[None]:
    """Make matplotlib draw in our style, with these changes."""
    try:
        import matplotlib
    except ImportError as missing:
        hint = "plots need matplotlib: pip install 'evenstep[plots]'"
        raise ModuleNotFoundError(hint, name="matplotlib") from missing
    with matplotlib.rc_context({**_STYLE, **changes}), warnings.catch_warnings():
        # Names may have letters that the font lacks; a box instead is no problem.
        warnings.filterwarnings("ignore", message="Glyph")
        yield


def save(figure: Figure, target: Target) -> None:
    """Save a figure; equal figures give equal files, and a stream gets SVG."""
    is_svg = isinstance(target, BytesIO) or target.suffix.lower() == ".svg"
    metadata = _NO_METADATA if is_svg else None
    figure.savefig(target, format="svg" if is_svg else "png", dpi=150, metadata=metadata)


def new_figure(width: float, height: float) -> Figure:
    """Make a figure of a size in points."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width / 72, height / 72))


def points(figure: Figure) -> Transform:
    """Return the coordinates in points, from the lower left corner of a figure."""
    from matplotlib.transforms import Affine2D

    return Affine2D().scale(1 / 72) + figure.dpi_scale_trans


def figure_of(axes: Axes) -> Figure:
    """Return the figure that axes are part of."""
    from matplotlib.figure import Figure

    # The method get_figure knows its argument `root` since matplotlib 3.10 only.
    assert isinstance(axes.figure, Figure)
    return axes.figure


def frame_of(axes: Axes) -> tuple[float, float, float, float]:
    """Return left, bottom, width and height of axes, in points."""
    width, height = 72 * figure_of(axes).get_size_inches()
    at = axes.get_position()
    return at.x0 * width, at.y0 * height, at.width * width, at.height * height


def draw_title(figure: Figure, title: str, details: str) -> None:
    """Write the answer of a figure, and below it what the figure is about."""
    height = 72 * figure.get_figheight()
    place: dict[str, Any] = {"va": "baseline", "transform": points(figure)}
    figure.text(8, height - 18, title, fontsize=13, fontweight="bold", **place)
    figure.text(8, height - 34, details, color=LIGHT.pale, **place)
