"""The palette: the colours of all pictures and pages, for a light and a dark background.

A colour has one meaning, in plots as on the dashboard: of Okabe and Ito's colours, blue is the run,
purple plain BSP, green the optimum, and vermillion a warning. Colours of a panel stay distinct with
deuteranopia and protanopia (`tests/insight/plots/test_palette.py`).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Palette:
    """Colours by their meaning, as `#rrggbb`."""

    back: str
    ink: str
    """Text."""
    pale: str
    """Less important text."""
    rule: str
    """Axes, and marks of events."""
    grid: str
    tile: str
    """Background of a tile on a page."""
    mark: str
    """Hatching of waiting."""
    run: str
    """The run itself, and work in a timeline."""
    warn: str
    """The last worker to finish; the straggler among many workers."""
    workers: str
    """The middle of many workers."""
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
    back="#ffffff", ink="#17202a", pale="#5b6875", rule="#8b98a5", grid="#e8edf1", tile="#f4f6f8",
    mark="#a9b4bf", run="#0072b2", warn="#d55e00", workers="#7f8b97", leader="#4b1d6b",
    wait="#dbe1e7", plain="#cc79a7", optimum="#009e73",
    series=(
        "#8068f8", "#78a000", "#b03800", "#0098e8", "#b808a0", "#989048", "#386838", "#904070",
    ),
)  # fmt: skip

DARK = Palette(
    back="#182027", ink="#e6ebf0", pale="#9aa8b5", rule="#6c7a87", grid="#232d35", tile="#222c34",
    mark="#55636f", run="#56b4e9", warn="#d55e00", workers="#8d9aa6", leader="#f0e442",
    wait="#2c3741", plain="#cc79a7", optimum="#009e73",
    series=(
        "#4870f8", "#a0d060", "#d84808", "#10a0f8", "#d828b0", "#e8c830", "#58b060", "#f8a8c0",
    ),
)  # fmt: skip
