"""The settings of a run on Ray."""

from __future__ import annotations

import math
from dataclasses import dataclass

from evenstep.core import require_whole
from evenstep.errors import InvalidSetting


@dataclass(frozen=True)
class RaySettings:
    """The Ray cluster, the speed of workers, and the tolerated failures of a run.

    >>> RaySettings(scale=0.1).clock, RaySettings().clock
    ('emulated', 'real')
    """

    address: str | None = None
    """Of the Ray cluster to use; None starts a local one, which ends with the run."""
    scale: float | None = None
    """Real seconds per second of the emulated cluster.

    None: workers run at their real speed; only the names, the total and the limits of the cluster
    matter.
    """
    keep_every: int = 1
    """Updates between two saved states of a shard, from which it is restarted."""
    restarts: int = 3
    """Restarts of one worker or shard before the run fails."""
    patience: float = 60.0
    """Seconds after which a silent actor counts as dead."""
    start_patience: float = 180.0
    """Seconds that actors have to start."""

    def __post_init__(self) -> None:
        require_whole("keep_every", self.keep_every)
        require_whole("restarts", self.restarts, least=0)
        times = {"patience": self.patience, "start_patience": self.start_patience}
        if self.scale is not None:
            times["scale"] = self.scale
        for name, value in times.items():
            if not 0 < value < math.inf:
                raise InvalidSetting(f"{name} must be finite and > 0, got {value}")

    @property
    def clock(self) -> str:
        """The kind of the run's times."""
        return "real" if self.scale is None else "emulated"
