"""Collects the mistakes in a cluster file and reports all of them with their lines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import NamedTuple

from evenstep.errors import ClusterFileError
from evenstep.simulator.clusters.file.toml_places import KeyPath, find_places


class _Mistake(NamedTuple):
    at: KeyPath
    message: str
    is_elsewhere: bool
    """Whether the mistake is in another file named here; the message then has its location."""


class Mistakes:
    """The mistakes found in one file so far."""

    def __init__(self, file: str, text: str) -> None:
        self._file = file
        self._text = text
        self._noted: list[_Mistake] = []

    def __bool__(self) -> bool:
        return bool(self._noted)

    def note(self, at: KeyPath, message: str, is_elsewhere: bool = False) -> None:
        self._noted.append(_Mistake(at, message, is_elsewhere))

    def raise_any(self) -> None:
        """Raise ClusterFileError with all mistakes, one per line, in the order of the file."""
        if not self._noted:
            return
        places = find_places(self._text)
        in_order = sorted(self._noted, key=lambda mistake: _line(mistake.at, places))
        messages = [self._format(mistake, _line(mistake.at, places)) for mistake in in_order]
        raise ClusterFileError("\n".join(dict.fromkeys(messages)))

    def _format(self, mistake: _Mistake, line: int) -> str:
        if mistake.is_elsewhere:
            return mistake.message
        location = f"{self._file}:{line}" if line else self._file
        return f"{location}: {mistake.message}"


def _line(at: KeyPath, places: Mapping[KeyPath, int]) -> int:
    """Return the line of a path, or of its nearest known parent; 0 for the whole file."""
    while at and at not in places:
        at = at[:-1]
    return places.get(at, 0)


def show(value: object) -> str:
    """Return a value as written in a TOML file, truncated if it is long.

    >>> show(True), show([1.5, "a"])
    ('true', "[1.5, 'a']")
    """
    text = str(value).lower() if isinstance(value, bool) else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def spell(path: KeyPath) -> str:
    """Return a path in dotted notation.

    >>> spell(("workers", 1, "speed"))
    'workers[1].speed'
    """
    text = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in path)
    return text.removeprefix(".")


def suggest(word: str, known: Iterable[str]) -> str:
    """Return a hint about an unknown word: the most similar known word, or all of them.

    >>> suggest("sped", ["name", "speed"]), suggest("x", ["name", "speed"])
    ("; did you mean 'speed'?", '; known are name, speed')
    """
    known = list(known)
    matches = get_close_matches(word, known, n=1)
    if matches:
        return f"; did you mean {matches[0]!r}?"
    return f"; known are {', '.join(known[:12])}{', ...' if len(known) > 12 else ''}"
