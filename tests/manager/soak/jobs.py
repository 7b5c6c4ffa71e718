"""The jobs of the soak: one for every way to agree on a plan."""

from dataclasses import dataclass

TRAINERS = 4
LEASE = 2.0
TIMEOUT = 3.0


@dataclass(frozen=True)
class Loop:
    """A job, and how its workers come to one plan."""

    job: str
    per_trainer: int
    """Workers of it in every trainer."""
    blocking: bool
    data_plane: bool
    """Whether a data plane carries the marks of all plans held; `agree` decides otherwise."""
    pace: float = 0.002
    """Seconds that an iteration takes at least."""

    @property
    def workers(self) -> int:
        return TRAINERS * self.per_trainer

    @property
    def total(self) -> int:
        return 16 * self.workers


JOBS = [
    Loop("blocking", 2, blocking=True, data_plane=True),
    Loop("non-blocking", 1, blocking=False, data_plane=True),
    # Nothing holds its workers together while there is no manager: they would drift far apart.
    Loop("agreeing", 1, blocking=True, data_plane=False, pace=0.05),
]
