"""From a run log to observations: the workers that were there at its end."""

from __future__ import annotations

import numpy as np

from evenstep.advice.observations import FEWEST, Observations
from evenstep.errors import EvenstepError, InvalidSetting
from evenstep.policies import make_policy
from evenstep.runlog import RunLog

WARM_UP = 2
"""First iterations that are left out of a run that was real, and has many more."""

_ENTRIES = 200_000
"""Times (iterations x workers) that are looked at: the latest ones."""


def observations_of(run_log: RunLog) -> Observations:
    """Return what a run log has on the workers at its end, warm-up left out."""
    if not run_log.segments:
        raise InvalidSetting(
            f"advice takes the times of at least {FEWEST} iterations, got a run log with none"
        )
    segment = run_log.segments[-1]
    length = len(segment.iterations)
    most = max(50, _ENTRIES // len(segment.workers))
    warms_up = run_log.header.source != "simulated" and len(run_log.segments) == 1
    first = WARM_UP if warms_up and length > 5 * WARM_UP else 0
    rows = slice(max(first, length - most), None)
    remarks = []
    if len(run_log.segments) > 1:
        remarks.append(
            f"Workers joined or left: this is about the {len(segment.workers)} that were there "
            "at the end."
        )
    elif length - first > most:
        remarks.append(f"This is about the last {most} iterations.")
    return Observations(
        workers=segment.workers,
        sizes=segment.batch_sizes[rows].astype(np.float64),
        times=segment.times[rows],
        total=run_log.header.total,
        sizes_follow=follows_speeds(run_log.header.policy),
        caps=np.asarray(segment.caps[-1]),
        source=run_log.header.source,
        remarks=tuple(remarks),
    )


def follows_speeds(policy: str) -> bool:
    """Whether the sizes of a run with this policy come from predicted speeds.

    >>> follows_speeds("proportional"), follows_speeds("equal_finish"), follows_speeds("their own")
    (True, False, False)
    """
    try:
        return make_policy(policy).uses_speeds
    except EvenstepError:
        return False
