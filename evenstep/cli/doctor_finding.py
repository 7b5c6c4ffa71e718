"""A finding of the doctor: what was looked at, how it is, and what to do about it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

MARKS = {"ok": "[ok]", "lacking": "[--]", "broken": "[!!]"}
"""As it should be; something does without; balanced training cannot work."""


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    >>> Finding("clock", "ok", "40 ns").as_json()
    {'subject': 'clock', 'state': 'ok', 'text': '40 ns', 'remedy': ''}
    """

    subject: str
    state: str
    """One of `MARKS`."""
    text: str
    remedy: str = ""
    """What to do, where there is something."""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)
