"""The manager's own log lines: what happens to the jobs, in words or as JSON."""

from __future__ import annotations

import json
import logging
import sys
from datetime import datetime, timezone
from typing import Any

from evenstep.manager.notifications import Notification

FORMATS = ("text", "json")

_SENTENCES = {
    "created": "created, {settings}",
    "recovered": "recovered at iteration {iteration}",
    "begun": "begins at iteration {iteration}",
    "moved": "goes on at iteration {iteration}",
    "ended": "its run is over at iteration {iteration}, {reason}",
    "joined": "worker {worker} takes part from iteration {iteration} on",
    "back": "worker {worker} is back at iteration {iteration}",
    "left": "worker {worker} left",
    "lost": "worker {worker} was silent longer than its lease",
}
"""What is said of each kind of happening; of others nothing."""

_log = logging.getLogger(__name__)


def set_up(form: str) -> None:
    """Send all log lines to standard error, in one of `FORMATS`."""
    handler = logging.StreamHandler(sys.stderr)
    text = logging.Formatter("%(asctime)s %(levelname)s %(message)s")
    handler.setFormatter(JsonLines() if form == "json" else text)
    logging.basicConfig(level=logging.INFO, handlers=[handler])


def log_news(happening: Notification) -> None:
    """Write a line about what happened."""
    sentence = _SENTENCES.get(happening.kind)
    if sentence is not None:
        words = {**happening.details, "worker": happening.worker}
        extra = {"event": happening.kind, "job": happening.job, "details": words}
        level = logging.WARNING if happening.kind == "lost" else logging.INFO
        _log.log(level, "job %s: %s", happening.job, sentence.format(**words), extra=extra)


class JsonLines(logging.Formatter):
    """One JSON object a line: time, level, event, message, and what the event is about."""

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
