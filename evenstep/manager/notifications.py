"""Notifications: events in the life of a manager's jobs, for logs and followers.

Jobs do not know their listeners, and a listener that fails affects nothing else: observing a
manager must never change its behaviour.
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
    """An event in the life of a job."""

    kind: str
    """`created`, `recovered`, `begun`, `moved`, `ended` of a job; `joined`, `back`, `left`, `lost`
    of a worker; `boundary` where one was closed."""
    job: str
    worker: str | None = None
    boundary: ClosedBoundary | None = None
    details: Mapping[str, Any] = field(default_factory=dict)
    """Further values, all of which JSON can represent."""


Listener = Callable[[Notification], None]


class Notifications:
    """Passes notifications to listeners, in order, on the manager's thread.

    >>> notifications, heard = Notifications(), []
    >>> notifications.listen(lambda notification: heard.append(notification.kind))
    >>> notifications.notify(Notification("created", "resnet"))
    >>> heard
    ['created']
    """

    def __init__(self) -> None:
        self._listeners: list[Listener] = []

    def listen(self, listener: Listener) -> None:
        self._listeners.append(listener)

    def notify(self, notification: Notification) -> None:
        for listener in self._listeners:
            _notify(listener, notification)


def _notify(listener: Listener, notification: Notification) -> None:
    try:
        listener(notification)
    except Exception:
        kind, job = notification.kind, notification.job
        _log.exception("a listener failed for notification %s of job %s", kind, job)
