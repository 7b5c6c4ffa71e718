"""`even`: plain BSP, the same batch size for every worker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from evenstep.core import Decision, Ints, View, even_sizes, predict_times


@dataclass(frozen=True)
class Even:
    """Sizes that differ by at most one granule; the first workers get the larger ones."""

    uses_speeds: ClassVar[bool] = False

    def init(self, num_workers: int) -> None:
        return None

    def plan(self, view: View, state: None) -> tuple[Decision, None]:
        sizes = even_sizes(view.total, view.limits)
        return Decision(sizes, "even", predict_times(view, sizes)), None

    def remap(self, state: None, keep: Ints) -> None:
        return None
