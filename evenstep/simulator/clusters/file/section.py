"""Sections: read a cluster file table by table, and note every mistake with its location.

Code that reads or uses a value raises InvalidSetting with a message that starts with the key at
fault. `Section.noting` catches it and adds the location; reading continues with a stand-in, so that
one run reports all mistakes of a file.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from evenstep.core import UNLIMITED
from evenstep.errors import ClusterFileError, InfeasibleLimits, InvalidSetting
from evenstep.simulator.clusters.file.mistakes import Mistakes, show, spell, suggest
from evenstep.simulator.clusters.file.toml_places import KeyPath


@dataclass(frozen=True)
class Section:
    """One table of the file, and the keys that it may have."""

    values: Mapping[str, object]
    path: KeyPath
    keys: tuple[str, ...]
    mistakes: Mistakes
    outer_keys: tuple[str, ...] = ()
    """The keys of the tables around this one."""

    def __post_init__(self) -> None:
        for key in self.values:
            if key not in self.keys:
                self._note_unknown(key)

    def _note_unknown(self, key: str) -> None:
        path = (*self.path, key)
        hint = suggest(key, self.keys)
        if key in self.outer_keys:
            # In TOML every key after a [[header]] belongs to it, which surprises many users.
            hint = "; it must stand above, before the first header"
        self.mistakes.note(path, f"{spell(path)} is not a known key{hint}")

    def __contains__(self, key: str) -> bool:
        return key in self.values

    def note(self, message: str, *at: str | int) -> None:
        """Note a mistake at a path in this table, or at the key that starts the message."""
        first_word, _, rest = message.partition(" ")
        if not at and first_word in self.keys:
            at = (first_word,)
        path = (*self.path, *at)
        if at and at[-1] == first_word:
            message = f"{spell(path)} {rest}"
        elif path:
            message = f"{spell(path)}: {message}"
        self.mistakes.note(path, message)

    @contextmanager
    def noting(self, *at: str | int) -> Iterator[None]:
        """Note the errors raised inside, and continue after the block."""
        try:
            yield
        except ClusterFileError as error:
            self.mistakes.note((*self.path, *at), str(error), is_elsewhere=True)
        except (InvalidSetting, InfeasibleLimits) as error:
            self.note(str(error), *at)

    def get(self, key: str, default: object = None) -> object:
        """Return any value; a key without a default is required."""
        if key not in self.values and default is None:
            raise InvalidSetting(f"{key} is missing")
        return self.values.get(key, default)

    def text(self, key: str, default: str | None = None) -> str:
        return check_text(key, self.get(key, default))

    def number(self, key: str, default: float | None = None, least: float | None = None) -> float:
        number = check_number(key, self.get(key, default))
        if least is not None and number < least:
            raise InvalidSetting(f"{key} must be >= {least:g}, got {number}")
        return number

    def optional_number(self, key: str) -> float | None:
        return self.number(key) if key in self else None

    def whole(
        self, key: str, default: int | None = None, least: int = 0, most: int = UNLIMITED - 1
    ) -> int:
        value = self.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise InvalidSetting(f"{key} must be a whole number, got {show(value)}")
        if value < least:
            raise InvalidSetting(f"{key} must be >= {least}, got {show(value)}")
        if value > most:
            raise InvalidSetting(f"{key} must be <= {most}, got {show(value)}")
        return value

    def section(self, key: str, keys: tuple[str, ...]) -> Section:
        """Return the table at a key."""
        value = self.get(key)
        if not isinstance(value, dict):
            raise InvalidSetting(f"{key} must be a table, got {show(value)}")
        return self._open(value, (key,), keys)

    def sections(self, key: str, keys: tuple[str, ...]) -> list[Section]:
        """Return the tables written as [[key]], possibly none."""
        tables = self.get(key, [])
        if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
            raise InvalidSetting(f"{key} must be written as [[{key}]] tables, got {show(tables)}")
        return [self._open(table, (key, i), keys) for i, table in enumerate(tables)]

    def _open(self, values: Mapping[str, object], at: KeyPath, keys: tuple[str, ...]) -> Section:
        around = (*self.outer_keys, *self.keys)
        return Section(values, (*self.path, *at), keys, self.mistakes, around)


def check_text(what: str, value: object) -> str:
    """Return a text that can be printed in a table or a run log.

    >>> check_text("name", "")
    Traceback (most recent call last):
    evenstep.errors.InvalidSetting: name must be a text of printable characters, got ''
    """
    if not isinstance(value, str) or not value.strip() or not value.isprintable():
        raise InvalidSetting(f"{what} must be a text of printable characters, got {show(value)}")
    return value


def check_number(what: str, value: object) -> float:
    """Return a finite number as a float.

    >>> check_number("speed", "60")
    Traceback (most recent call last):
    evenstep.errors.InvalidSetting: speed must be a number, got '60'
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InvalidSetting(f"{what} must be a number, got {show(value)}")
    if not abs(value) <= sys.float_info.max:
        raise InvalidSetting(f"{what} must be finite, got {show(value)}")
    return float(value)


def check_pair(what: str, value: object) -> tuple[float, float]:
    """Return two finite numbers as floats.

    >>> check_pair("spike", [2])
    Traceback (most recent call last):
    evenstep.errors.InvalidSetting: spike must be two numbers in brackets, got [2]
    """
    if not isinstance(value, list) or len(value) != 2:
        raise InvalidSetting(f"{what} must be two numbers in brackets, got {show(value)}")
    return check_number(what, value[0]), check_number(what, value[1])
