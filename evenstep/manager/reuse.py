"""What one job has learned, for another one: the state of its predictors.

Workers are found by their names. Whoever has a name that the other job does not know begins like a
newcomer there: with NARX, from the network that all its workers share. Policies and plans begin
anew, as they belong to the total of their job.
"""

from __future__ import annotations

from evenstep.core.rows import inner_arrays
from evenstep.core.settings import parse_spec
from evenstep.errors import InvalidSetting, StateFileError
from evenstep.manager.job import Job
from evenstep.manager.saved import Learned
from evenstep.manager.settings import Settings


def inherited(settings: Settings, other: Job) -> Learned:
    """Return what a job with these settings begins with, if it reuses what another has learned."""
    ours, theirs = settings.predictor_in_use, other.settings.predictor_in_use
    if ours is None or theirs is None or parse_spec(ours)[0] != parse_spec(theirs)[0]:
        raise InvalidSetting(
            f"to reuse what job {other.name} has learned, the predictor must be of the kind of its "
            f"{theirs or 'none'}, got {ours or 'none'}"
        )
    learned = other.knowledge
    if learned is None:
        raise InvalidSetting(f"a job to reuse must have learned something, got {other.name}")
    planner = settings.planner(learned.workers)
    assert planner.predictor is not None
    try:
        planner.predictor.restore(inner_arrays(learned.state, "predictor"))
    except StateFileError as error:
        raise InvalidSetting(
            f"predictor {ours} must have the settings of {theirs}, to reuse what job {other.name} "
            f"has learned: {error}"
        ) from error
    return Learned(learned.workers, planner.state())
