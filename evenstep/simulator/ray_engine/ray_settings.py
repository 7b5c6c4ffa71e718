"""How a run uses Ray."""

from __future__ import annotations

import math
from dataclasses import dataclass

from evenstep.core.short_form import require_whole
from evenstep.errors import InvalidSetting


@dataclass(frozen=True)
class RaySettings:
    """Where a run takes place, how fast its workers are, and how much may go wrong.

    >>> RaySettings(scale=0.1).clock, RaySettings().clock
    ('emulated', 'real')
    """

    address: str | None = None
    """Of the Ray cluster to run on; None starts a local one, which ends with the run."""
    scale: float | None = None
    """Real seconds for a second of the cluster, whose times the workers then take.

    None lets them run as fast as they can: only the names, the total and the limits of the
    cluster matter then.
    """
    keep_every: int = 1
    """Updates between two states of a shard that are kept for the case that it dies."""
    restarts: int = 3
    """How often one worker, or one shard, is restarted before the run gives up."""
    patience: float = 60.0
    """Seconds after which an actor that says nothing counts as dead."""
    start_patience: float = 180.0
    """Seconds that actors have for starting."""

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
        """What the times of a run are."""
        return "real" if self.scale is None else "emulated"
