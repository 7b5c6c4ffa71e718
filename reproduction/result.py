"""The result of an experiment: tables, plots and claims, each with the kind of its figures."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from evenstep.errors import InvalidSetting

KINDS = {
    "measured": "measured on this machine",
    "virtual": "virtual time, simulated",
    "emulated": "emulated: real processes that were slowed down on purpose",
    "published": "measured by others, on their machines",
}
"""The kinds of figures; everything shown is labelled with its kind."""
REAL = {"measured", "emulated"}
"""The kinds that a busy machine changes."""

PAPER = ", paper"
"""The suffix of the column with the paper's figures."""

Row = Mapping[str, Any]


def beside(figure: str, ours: Any, paper: Any) -> dict[str, Any]:
    """Return two columns of a row: a figure of ours, and the paper's; None where it has none.

    >>> beside("RMSE", 4.5, 4.78)
    {'RMSE': 4.5, 'RMSE, paper': 4.78}
    """
    return {figure: ours, figure + PAPER: paper}


@dataclass(frozen=True)
class Table:
    """Rows with the same columns."""

    title: str
    kind: str
    rows: Sequence[Row]
    note: str = ""

    def __post_init__(self) -> None:
        check_kind(self.title, self.kind)
        if not self.rows:
            raise InvalidSetting(f"table {self.title!r} must have at least 1 row, got none")
        for row in self.rows:
            if list(row) != self.columns:
                rule = f"rows of table {self.title!r} must have the columns {self.columns}"
                raise InvalidSetting(f"{rule}, got {list(row)}")

    @property
    def columns(self) -> list[str]:
        return list(self.rows[0])


@dataclass(frozen=True)
class Curve:
    """One line of a plot, or the bars of one colour."""

    label: str
    x: Sequence[Any]
    """Numbers; for bars, what each one is called."""
    y: Sequence[float | None]
    dashed: bool = False


@dataclass(frozen=True)
class Plot:
    """A picture, as numbers."""

    title: str
    kind: str
    x: str
    """The quantity along x, with its unit."""
    y: str
    curves: Sequence[Curve]
    bars: bool = False
    log: bool = False
    """Whether both axes grow by factors."""
    marks: Sequence[tuple[float, str]] = ()
    """Values of x at which something changes."""

    def __post_init__(self) -> None:
        check_kind(self.title, self.kind)


@dataclass(frozen=True)
class Claim:
    """A sentence that is true or false of the figures shown with it."""

    name: str
    """For tests."""
    text: str
    holds: bool
    of: str = "paper"
    """Its source: `paper`, or `evenstep`."""
    why: str = ""
    """Where it does not hold: the reason, or the conditions under which it does."""

    def __post_init__(self) -> None:
        if self.holds:
            # Reasons are put into words for figures that contradict the claim.
            object.__setattr__(self, "why", "")


@dataclass(frozen=True)
class Result:
    """The result of an experiment; `skipped` or `failed` give the reason if there is none."""

    tables: Sequence[Table] = ()
    plots: Sequence[Plot] = ()
    claims: Sequence[Claim] = ()
    differences: Sequence[str] = ()
    """Why ours differs from the paper's, a sentence or some each."""
    seeds: Sequence[int] = ()
    skipped: str = ""
    """Why it cannot be made here."""
    failed: str = ""
    """Which error stopped it."""

    @property
    def is_empty(self) -> bool:
        """Whether there is no result, so that another attempt makes sense."""
        return bool(self.skipped or self.failed)

    def claim(self, name: str) -> Claim:
        """Return the claim of a name."""
        return next(claim for claim in self.claims if claim.name == name)

    @property
    def kinds(self) -> list[str]:
        """The kinds of its figures, in the order in which they are shown."""
        kinds = [table.kind for table in self.tables] + [plot.kind for plot in self.plots]
        return list(dict.fromkeys(kinds))

    def as_json(self) -> dict[str, Any]:
        """Return all of it as JSON can hold it; what is not finite is null."""
        plain: dict[str, Any] = as_plain(asdict(self))
        return plain

    @classmethod
    def of_json(cls, plain: Mapping[str, Any]) -> Result:
        """Return the result that `as_json` was made from."""
        return cls(
            tables=[Table(**table) for table in plain["tables"]],
            plots=[
                Plot(**{**plot, "curves": [Curve(**curve) for curve in plot["curves"]]})
                for plot in plain["plots"]
            ],
            claims=[Claim(**claim) for claim in plain["claims"]],
            differences=plain["differences"],
            seeds=plain["seeds"],
            skipped=plain["skipped"],
            failed=plain.get("failed", ""),
        )


def as_plain(value: Any) -> Any:
    """Return what JSON can hold of a value: numpy's numbers and arrays as Python's own.

    >>> as_plain({"x": np.array([1, 2]), "y": [np.float64(0.5), float("nan")]})
    {'x': [1, 2], 'y': [0.5, None]}
    """
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {str(key): as_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [as_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def check_kind(title: str, kind: str) -> None:
    """Raise InvalidSetting where figures are none of `KINDS`."""
    if kind not in KINDS:
        raise InvalidSetting(f"kind of {title!r} must be one of {', '.join(KINDS)}, got {kind!r}")
