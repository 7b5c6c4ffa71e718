"""`whole_granules`: sizes in multiples of a granularity for a total that is not a multiple.

If batches are padded, as for a compiler that needs few shapes, t(x) is a staircase: all sizes
within a granule take as long as the whole one. So the inner policy plans whole granules, and one
of them is then cut short.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from evenstep.core import Decision, Ints, Limits, View, require_whole, split_proportional
from evenstep.policies.wrappers import Wrapper


@dataclass(frozen=True)
class WholeGranules(Wrapper):
    """Plan whole granules, and cut the largest batch short, so that the total is kept."""

    granularity: int = 8

    def __post_init__(self) -> None:
        require_whole("granularity of whole_granules", self.granularity)

    def plan(self, view: View, state: Any) -> tuple[Decision, Any]:
        limits = view.limits.tighten(granularity=self.granularity)
        whole = replace(view, current=_whole(view.current, limits), limits=limits)
        decision, state = self.inner.plan(whole, state)
        proposed = decision.proposed
        return replace(
            decision,
            sizes=cut_short(decision.sizes, view.total, limits),
            proposed=None if proposed is None else cut_short(proposed, view.total, limits),
        ), state


def cut_short(sizes: Ints, total: int, limits: Limits) -> Ints:
    """Return sizes that add up to the total, from whole granules that exceed it by less than one.

    The largest batch is cut, ties to the lower worker; others too if it reaches its minimum.

    >>> cut_short(np.array([16, 24]), 36, Limits.of(2, granularity=8))
    array([16, 20])
    """
    excess = int(sizes.sum()) - total
    cut = sizes.copy()
    for worker in np.argsort(-sizes, kind="stable"):
        least = max(int(limits.minimum[worker]), 1)
        taken = min(excess, max(int(sizes[worker]) - least, 0))
        cut[worker] -= taken
        excess -= taken
    assert excess == 0, (sizes, total)
    return cut


def _whole(sizes: Ints, limits: Limits) -> Ints:
    """Return the whole granules that were cut short to these sizes, or the nearest ones."""
    g = limits.granularity
    total = -(-int(sizes.sum()) // g) * g
    whole = -(-sizes // g) * g
    if int(whole.sum()) == total:
        return whole
    return split_proportional(total, np.maximum(sizes, 1).astype(np.float64), limits)
