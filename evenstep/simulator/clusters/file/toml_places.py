"""Finds the line of every key and array element in a TOML text.

The parser of the standard library returns values without lines. This scanner finds the lines; it
relies on the parser for validation and only reads valid texts.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator

from evenstep.errors import ClusterFileError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

KeyPath = tuple[str | int, ...]
"""The keys and positions of a value: ("workers", 1, "speed")."""

_TOKEN = re.compile(
    r'''
    (?P<blank> [ \t\r]+ | \#[^\n]* )
    | """ (?: [^"\\] | \\. | "{1,2}(?!") )* "{3,5}
    | \'\'\' (?: [^'] | '{1,2}(?!') )* '{3,5}
    | " (?: [^"\\] | \\. )* "
    | ' [^']* '
    | [\[\]{}=,.\n]
    | [^\s\[\]{}=,.\#"']+
    ''',
    re.VERBOSE | re.DOTALL,
)


def parse_toml(file: str, text: str) -> dict[str, object]:
    """Parse a TOML text; a syntax error is reported with its line.

    >>> parse_toml("cluster.toml", "total = 128\\nworkers = ")
    Traceback (most recent call last):
    evenstep.errors.ClusterFileError: cluster.toml:2: must be valid TOML: Invalid value (at end of \
document)
    """
    try:
        values: dict[str, object] = tomllib.loads(text)
    except ValueError as error:  # a TOMLDecodeError, or a number of thousands of digits
        found = re.search(r"\(at line (\d+)", str(error))
        line = int(found.group(1)) if found else text.rstrip("\n").count("\n") + 1
        raise ClusterFileError(f"{file}:{line}: must be valid TOML: {error}") from error
    return values


def find_places(text: str) -> dict[KeyPath, int]:
    """Return the line, counted from 1, where each key and array element first occurs.

    >>> find_places("total = 128\\n[[workers]]\\nspeed = 60.0")
    {('total',): 1, ('workers',): 2, ('workers', 0): 2, ('workers', 0, 'speed'): 3}
    """
    scanner = _Scanner(text)
    scanner.scan_document()
    return scanner.places


class _Scanner:
    def __init__(self, text: str) -> None:
        self.places: dict[KeyPath, int] = {}
        self._tokens = list(_tokenize(text))
        self._next = 0
        self._num_tables: dict[KeyPath, int] = {}
        """Number of tables of each [[array]] so far."""

    def scan_document(self) -> None:
        table: KeyPath = ()
        while self._token:
            if self._take("["):
                table = self._scan_header()
            elif not self._take("\n"):
                self._scan_pair(table)

    def _scan_header(self) -> KeyPath:
        """Scan the rest of a [table] or [[array of tables]] header and return its path."""
        line = self._line
        is_array = self._take("[")
        *parents, last = self._take_keys()
        path: KeyPath = ()
        for key in parents:
            path = self._enter((*path, key), line)
        path = (*path, last)
        if is_array:
            self._num_tables[path] = self._num_tables.get(path, 0) + 1
        path = self._enter(path, line)
        while self._take("]"):
            pass
        return path

    def _enter(self, path: KeyPath, line: int) -> KeyPath:
        """Return the table at a path: the last one of an array of tables."""
        self.places.setdefault(path, line)
        if path in self._num_tables:
            path = (*path, self._num_tables[path] - 1)
            self.places.setdefault(path, line)
        return path

    def _scan_pair(self, path: KeyPath) -> None:
        line = self._line
        for key in self._take_keys():
            path = (*path, key)
            self.places.setdefault(path, line)
        self._take("=")
        self._scan_value(path)

    def _scan_value(self, path: KeyPath) -> None:
        if self._take("["):
            position = 0
            while not self._closes("]"):
                element = (*path, position)
                self.places[element] = self._line
                self._scan_value(element)
                position += 1
        elif self._take("{"):
            while not self._closes("}"):
                self._scan_pair(path)
        else:
            while self._token and self._token not in ",]}\n":
                self._next += 1

    def _closes(self, bracket: str) -> bool:
        while self._take("\n") or self._take(","):
            pass
        return self._take(bracket) or not self._token

    def _take_keys(self) -> list[str]:
        """Take a key, or all parts of a dotted key."""
        keys = [self._take_key()]
        while self._take("."):
            keys.append(self._take_key())
        return keys

    def _take_key(self) -> str:
        token = self._token
        self._next += 1
        return tomllib.loads(f"key = {token}")["key"] if token[0] in "\"'" else token

    def _take(self, token: str) -> bool:
        taken = self._token == token
        self._next += taken
        return taken

    @property
    def _token(self) -> str:
        """The next token, or "" at the end."""
        return self._tokens[self._next][0] if self._next < len(self._tokens) else ""

    @property
    def _line(self) -> int:
        """The line of the next token."""
        return self._tokens[self._next][1]


def _tokenize(text: str) -> Iterator[tuple[str, int]]:
    """Yield each token with the line on which it starts."""
    line = 1
    for match in _TOKEN.finditer(text):
        if match.lastgroup != "blank":
            yield match.group(), line
        line += match.group().count("\n")
