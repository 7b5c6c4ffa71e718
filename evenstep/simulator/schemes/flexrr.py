"""`flexrr`: BSP whose workers pass samples to each other within an iteration (Harlap et al., 2016).

Workers process their batch sample by sample, so that it can be split at any time. Several times per
iteration their progress is compared, and a worker that lags behind passes some unprocessed samples
to a worker that is ahead; the helper group of each worker is all others (section 5.3 of the paper).
This module decides which worker helps which; the engine runs it and charges the costs of monitoring
and moving.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from evenstep.core import Ints, require_whole
from evenstep.errors import InvalidSetting
from evenstep.simulator.schemes.bsp import Bsp
from evenstep.simulator.schemes.scheme import Answer


@dataclass(frozen=True, eq=False)
class Help:
    """Samples that move at a check: from each lagging worker to its helper."""

    lagging: Ints
    helpers: Ints
    counts: Ints
    """Samples of each pair, at least 1."""


class FlexRR:
    """Handles arrivals like BSP; `check` compares the progress within an iteration.

    >>> flexrr = FlexRR(num_workers=3, trigger=0.2, share=0.1)
    >>> moves = flexrr.check(remaining=np.array([90, 60, 30]), batch_size=100)
    >>> moves.lagging, moves.helpers, moves.counts
    (array([0]), array([2]), array([10]))
    """

    synchronous = True

    def __init__(
        self,
        num_workers: int,
        checks: int = 100,
        trigger: float = 0.2,
        share: float = 0.025,
        monitoring: float = 0.03,
        moving: float = 0.02,
    ) -> None:
        require_whole("checks of flexrr", checks)
        for name, value in (("trigger", trigger), ("monitoring", monitoring), ("moving", moving)):
            if not 0 <= value < np.inf:
                raise InvalidSetting(f"{name} of flexrr must be finite and >= 0, got {value}")
        if not 0 < share <= 1:
            raise InvalidSetting(f"share of flexrr must be a fraction above 0, got {share}")
        self._bsp = Bsp(num_workers)
        self.num_counted = num_workers
        self.checks = checks
        """Checks of the progress in one iteration."""
        self.trigger = trigger
        """The lag above which a worker is helped, as a share of a batch."""
        self.share = share
        """Samples passed on at once, as a share of a batch."""
        self.monitoring = monitoring
        """Cost of monitoring the progress, as a share of the time of every sample."""
        self.moving = moving
        """Cost of moving samples, once per worker and iteration, as a share of its batch."""

    def arrive(self, worker: int) -> Answer:
        return self._bsp.arrive(worker)

    def leave(self, worker: int) -> Answer:
        return self._bsp.leave(worker)

    def join(self, worker: int) -> Answer:
        return self._bsp.join(worker)

    def check(self, remaining: Ints, batch_size: float) -> Help:
        """Return how many samples each lagging worker passes to its helper.

        The worker furthest behind is paired with the one furthest ahead, the second with the
        second, and so on. A pair moves at most half its difference; a helper that has nothing left
        receives samples however small the lag is.

        `remaining` is the number of unprocessed samples of each worker, `batch_size` the batch that
        shares refer to: X/n.
        """
        order = remaining.argsort(kind="stable")
        pairs = len(order) // 2
        helpers, lagging = order[:pairs], order[::-1][:pairs]
        left = remaining[helpers]
        lag = remaining[lagging] - left
        due = (lag > self.trigger * batch_size) | (left <= 0)
        # From pair to pair the lag falls and the helper's rest grows: the first pairs are due.
        num_due = int((due & (lag >= 2)).sum())
        counts = np.minimum(max(1, round(self.share * batch_size)), lag[:num_due] // 2)
        return Help(lagging[:num_due], helpers[:num_due], counts)
