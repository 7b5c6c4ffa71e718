"""News: what happens to the jobs of a manager, told to whoever listens.

Who tells knows nobody who listens, and a listener that fails harms nobody but itself: seeing a
manager must never change what it does.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from evenstep.manager.job_history import ClosedBoundary

_log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Notification:
    """Something that happened to a job."""

    kind: str
    """`created`, `recovered`, `begun`, `moved`, `ended` of a job; `joined`, `back`, `left`, `lost`
    of a worker; `boundary` where one was closed."""
    job: str
    worker: str | None = None
    boundary: ClosedBoundary | None = None
    details: Mapping[str, Any] = field(default_factory=dict)
    """What else there is to say, in words that JSON knows."""


Listener = Callable[[Notification], None]


class Notifications:
    """Passes on what happens, in the order in which it does, on the thread of the manager.

    >>> news, heard = Notifications(), []
    >>> news.listen(lambda happening: heard.append(happening.kind))
    >>> news.tell(Notification("created", "resnet"))
    >>> heard
    ['created']
    """

    def __init__(self) -> None:
        self._listeners: list[Listener] = []

    def listen(self, listener: Listener) -> None:
        self._listeners.append(listener)

    def tell(self, happening: Notification) -> None:
        for listener in self._listeners:
            _tell(listener, happening)


def _tell(listener: Listener, happening: Notification) -> None:
    try:
        listener(happening)
    except Exception:
        _log.exception("%s of job %s could not be told", happening.kind, happening.job)
