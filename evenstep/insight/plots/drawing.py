"""Drawing: the style of the pictures, and the formats they can be saved in."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evenstep.errors import InvalidSetting

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = (".png", ".svg")

_STYLE: dict[Any, Any] = {
    "axes.axisbelow": True,
    "axes.edgecolor": "#8a8a8a",
    "axes.grid": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9,
    "grid.color": "#e6e6e6",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "svg.hashsalt": "evenstep",
    # A name with dollar signs is a name, not a formula.
    "text.parse_math": False,
    "text.usetex": False,
}


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


def save(figure: Figure, path: Path) -> None:
    """Save a figure; equal figures give equal files."""
    metadata = {"Date": None} if path.suffix.lower() == ".svg" else None
    figure.savefig(path, dpi=150, metadata=metadata)
