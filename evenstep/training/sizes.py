"""Checks of the sizes that a training was given."""

from __future__ import annotations

from collections.abc import Sequence

from evenstep.core.settings import require_whole
from evenstep.errors import InvalidSetting


def check_sizes(total: int, minimum: int, num_workers: int) -> None:
    """Raise InvalidSetting unless every worker can have a batch."""
    require_whole("total", total)
    require_whole("minimum", minimum, least=0)
    if total < num_workers * max(minimum, 1):
        raise InvalidSetting(
            f"total must be at least {max(minimum, 1)} for each of {num_workers} workers, "
            f"got {total}"
        )


def maxima_of(maximum: int | Sequence[int] | None, num_workers: int) -> list[int] | None:
    """Return every worker's largest batch size, from one for all or one for each."""
    if maximum is None:
        return None
    maxima = [maximum] * num_workers if isinstance(maximum, int) else list(maximum)
    if len(maxima) != num_workers:
        raise InvalidSetting(f"maximum must be one per worker ({num_workers}), got {len(maxima)}")
    for worker, most in enumerate(maxima):
        require_whole(f"maximum of worker {worker}", most)
    return maxima
