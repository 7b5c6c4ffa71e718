"""The manager's own log lines about its jobs, as text or as JSON."""

from __future__ import annotations

import json
import logging
import math
import sys
import time
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any

from evenstep.manager.notifications import Notification

FORMATS = ("text", "json")

_SENTENCES = {
    "created": "created, {settings[workers]} workers, total {settings[total]}, policy "
    "{settings[policy]}, predictor {settings[predictor]}",
    "recovered": "recovered at iteration {iteration}",
    "begun": "begins at iteration {iteration}",
    "moved": "continues at iteration {iteration}",
    "ended": "its run is over at iteration {iteration}, {reason}",
    "joined": "worker {worker} takes part from iteration {iteration} on",
    "back": "worker {worker} is back at iteration {iteration}",
    "left": "worker {worker} left",
    "lost": "worker {worker} was silent longer than its lease",
    "forgotten": "forgotten, as there are too many jobs and it was idle longest",
}
"""The log line of each kind of notification; other kinds have none."""

_log = logging.getLogger(__name__)


def set_up(form: str) -> None:
    """Send all log lines to standard error, in one of `FORMATS`."""
    handler = logging.StreamHandler(sys.stderr)
    text = logging.Formatter("%(asctime)s %(levelname)s %(message)s")
    handler.setFormatter(JsonLines() if form == "json" else text)
    logging.basicConfig(level=logging.INFO, handlers=[handler])


def log_notification(notification: Notification) -> None:
    """Log a notification."""
    sentence = _SENTENCES.get(notification.kind)
    if sentence is not None:
        words = {**notification.details, "worker": notification.worker}
        extra = {"event": notification.kind, "job": notification.job, "details": words}
        level = logging.WARNING if notification.kind == "lost" else logging.INFO
        _log.log(level, "job %s: %s", notification.job, sentence.format(**words), extra=extra)


class Seldom:
    """Logs one kind of warning at most once per interval, and counts those that it leaves out.

    For what a stranger can cause: the log must not grow with the number of attempts.
    """

    def __init__(
        self,
        logger: logging.Logger,
        interval: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._logger = logger
        self._interval = interval
        self._clock = clock
        self._logged = -math.inf
        self._left_out = 0

    def warning(self, message: str, *values: object, exc_info: bool = False) -> None:
        """Log a message with its values, or leave it out."""
        now = self._clock()
        if now - self._logged < self._interval:
            self._left_out += 1
            return
        more = f" (and {self._left_out} more times since the last such line)"
        text = message + (more if self._left_out else "")
        self._logger.warning(text, *values, exc_info=exc_info)
        self._logged, self._left_out = now, 0


class JsonLines(logging.Formatter):
    """One JSON object per line: time, level, event, message, and the details of the event."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, timezone.utc).isoformat(
                "T", "milliseconds"
            ),
            "level": record.levelname.lower(),
            "event": getattr(record, "event", "log"),
        }
        if hasattr(record, "job"):
            line["job"] = record.job
        details = getattr(record, "details", {})
        line |= {name: value for name, value in details.items() if value is not None}
        line["message"] = record.getMessage()
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)
