"""The settings of a job, and the rules for names."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import quote

from evenstep.core import LARGEST_TOTAL, Limits, require_whole
from evenstep.core.planner import Planner
from evenstep.errors import InvalidSetting
from evenstep.policies import default_policy, make_policy
from evenstep.predictors import DEFAULT_PREDICTOR, make_predictor

MAX_WORKERS = 10_000
"""Workers that a job may have."""

_LONGEST_NAME = 160
"""Characters of a job's name in a file name, which may have 255 together with its suffixes."""
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:@-]{0,127}")


@dataclass(frozen=True)
class JobSettings:
    """The settings of a job, whose bounds are checked on construction; `check` does the rest.

    >>> JobSettings(workers=4, total=2)
    Traceback (most recent call last):
    evenstep.errors.InfeasibleLimits: the minimum batch sizes of 4 workers add up to 4, more than \
the total 2
    """

    workers: int
    """The job begins when this many workers have joined."""
    total: int
    """X: samples of all workers in one iteration."""
    policy: str = default_policy()
    predictor: str = DEFAULT_PREDICTOR
    minimum: int = 1
    """Smallest batch size."""
    granularity: int = 1
    """Every batch size is a multiple of this."""
    elastic: bool = False
    """Whether further workers may join once the job has `workers` of them."""

    def __post_init__(self) -> None:
        require_whole("workers of a job", self.workers, most=MAX_WORKERS)
        require_whole("total of a job", self.total, most=LARGEST_TOTAL)
        require_whole("minimum of a job", self.minimum, least=0, most=LARGEST_TOTAL)
        require_whole("granularity of a job", self.granularity, most=LARGEST_TOTAL)
        Limits.of(self.workers, self.minimum, granularity=self.granularity).bounds(self.total)

    def check(self) -> JobSettings:
        """Return these settings, after making a planner from them; this may take a while."""
        self.planner([str(i) for i in range(self.workers)])
        return self

    @property
    def predictor_in_use(self) -> str | None:
        """The predictor, or None if the policy does not use speeds."""
        return self.predictor if make_policy(self.policy).uses_speeds else None

    def planner(self, workers: Sequence[str]) -> Planner:
        """Make the planner of a job that begins with these workers."""
        policy = make_policy(self.policy)
        # Also if the policy does not use it, so that a mistake in it is found now.
        predictor = make_predictor(self.predictor, len(workers))
        return Planner(
            workers,
            self.total,
            policy,
            predictor if policy.uses_speeds else None,
            minimum=self.minimum,
            granularity=self.granularity,
        )


def check_name(what: str, name: object) -> str:
    """Return the name of a job or a worker after checking it."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidSetting(
            f"the name of a {what} must be 1 to 128 letters, digits or any of _.:@- "
            f"and begin with a letter or digit, got {str(name)[:150]!r}"
        )
    return name


def safe_name(job: str) -> str:
    """Return the name of a job's files; two jobs never have the same.

    >>> safe_name("resnet:50/../x")
    'resnet%3A50%2F..%2Fx'
    """
    name = quote(job, safe="@")
    if len(name) <= _LONGEST_NAME:
        return name
    return f"{name[:_LONGEST_NAME]}-{hashlib.sha256(job.encode()).hexdigest()[:16]}"


def in_name_order(workers: Sequence[str]) -> list[str]:
    """Return names in natural order.

    >>> in_name_order(["w10", "w9", "chief"])
    ['chief', 'w9', 'w10']
    """

    def parts(name: str) -> list[str | int]:
        return [int(p) if p.isdecimal() else p for p in re.split(r"(\d+)", name)]

    return sorted(workers, key=parts)
