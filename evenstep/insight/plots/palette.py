"""The palette: the colours of all pictures and pages, for a light and a dark background.

Within a figure a colour has one meaning. The colours stay distinct with deuteranopia and protanopia
(`tests/insight/plots/test_palette.py`); plain BSP, the optimum, work and late are the dashboard's.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Palette:
    """Colours by their meaning, as `#rrggbb`."""

    back: str
    ink: str
    """Text, and the run itself."""
    pale: str
    """Less important text."""
    rule: str
    """Axes, and marks of events."""
    grid: str
    tile: str
    """Background of a tile on a page."""
    work: str
    """Batch processing times; the middle of many workers."""
    late: str
    """The last worker to finish; the straggler among many workers."""
    leader: str
    """The leader among many workers."""
    wait: str
    plain: str
    """Plain BSP."""
    optimum: str
    series: tuple[str, ...]
    """A few workers, or other things of one kind, in their order."""

    @property
    def roles(self) -> dict[str, str]:
        """All colours by name, those of `series` numbered from 0."""
        single = {name: value for name, value in vars(self).items() if isinstance(value, str)}
        return single | {f"series-{i}": colour for i, colour in enumerate(self.series)}

    def css(self) -> str:
        """Return the colours as CSS variables, `--back: #ffffff; ...`."""
        return " ".join(f"--{name}: {colour};" for name, colour in self.roles.items())

    def nth(self, i: int) -> str:
        """Return a colour of `series`, from the start again after the last."""
        return self.series[i % len(self.series)]


LIGHT = Palette(
    back="#ffffff", ink="#1c1c1c", pale="#5f6368", rule="#8a8f94", grid="#e6e8ea", tile="#f3f5f7",
    work="#0b6bb8", late="#d9730d", leader="#30a8c0", wait="#ccd3da",
    plain="#b3261e", optimum="#1a7f4b",
    series=(
        "#1058a8", "#b06000", "#00a088", "#801060", "#c88800", "#30a0c0", "#b060d8", "#78a050",
    ),
)  # fmt: skip

DARK = Palette(
    back="#161819", ink="#e8e8e8", pale="#a5abb0", rule="#7b8187", grid="#2b2f32", tile="#23272a",
    work="#4aa3e8", late="#f29b46", leader="#60d0f0", wait="#3d4953",
    plain="#ff8a80", optimum="#4cc38a",
    series=(
        "#0878f8", "#f0a020", "#189088", "#c060b8", "#b87018", "#50c8e8", "#b890f8", "#609050",
    ),
)  # fmt: skip
