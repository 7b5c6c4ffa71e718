"""Types of command-line arguments; each says what it takes when it gets something else."""

from __future__ import annotations

import argparse

from evenstep.errors import InvalidSetting


def count(text: str) -> int:
    """Read a whole number >= 1."""
    return _whole(text, least=1)


def whole(text: str) -> int:
    """Read a whole number >= 0."""
    return _whole(text, least=0)


def parse_seeds(text: str) -> list[int]:
    """Read seeds: a range, single ones, or both.

    >>> parse_seeds("0-3"), parse_seeds("1,4,9-10")
    ([0, 1, 2, 3], [1, 4, 9, 10])
    """
    seeds: list[int] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if not (first.isdecimal() and (last.isdecimal() if dash else True)):
            raise InvalidSetting(f"seeds must be like 0-7 or 1,4,9, got {text!r}")
        some = range(int(first), int(last if dash else first) + 1)
        if not some or (seeds and some[0] <= seeds[-1]):
            raise InvalidSetting(f"seeds must rise, got {text!r}")
        seeds += some
    return seeds


def _whole(text: str, least: int) -> int:
    try:
        number = int(text)
    except ValueError:
        number = least - 1
    if number < least:
        raise argparse.ArgumentTypeError(f"must be a whole number >= {least}, got {text!r}")
    return number
