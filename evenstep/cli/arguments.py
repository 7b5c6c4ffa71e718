"""Types of command-line arguments; an error names the rule and the argument."""

from __future__ import annotations

import argparse
import math

from evenstep.errors import InvalidSetting


def count(text: str) -> int:
    """Read a whole number >= 1."""
    return _whole(text, least=1)


def whole(text: str) -> int:
    """Read a whole number >= 0."""
    return _whole(text, least=0)


def positive(text: str) -> float:
    """Read a number > 0."""
    return _fraction(text, most=math.inf)


def share(text: str) -> float:
    """Read a fraction above 0, up to 1."""
    return _fraction(text, most=1.0)


def add_seeds(parser: argparse.ArgumentParser, default: str = "0") -> None:
    """Add the option for one seed or several; `default` is what the help says."""
    several = f"one, or several like 0-7 or 1,4,9: medians; default {default}"
    parser.add_argument("--seeds", metavar="S", help=several)


def seeds_of(args: argparse.Namespace, default: str = "0") -> list[int]:
    """Return the seeds of the arguments."""
    return parse_seeds(default if args.seeds is None else args.seeds)


def parse_seeds(text: str) -> list[int]:
    """Read seeds: a range, single ones, or both.

    >>> parse_seeds("0-3"), parse_seeds("1,4,9-10")
    ([0, 1, 2, 3], [1, 4, 9, 10])
    """
    return parse_numbers(text, "seeds")


def parse_numbers(text: str, what: str) -> list[int]:
    """Read whole numbers that rise: a range, single ones, or both.

    >>> parse_numbers("0,2-3", "cores")
    [0, 2, 3]
    """
    numbers: list[int] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if not (first.isdecimal() and (last.isdecimal() if dash else True)):
            raise InvalidSetting(f"{what} must be like 0-7 or 1,4,9, got {text!r}")
        some = range(int(first), int(last if dash else first) + 1)
        if not some or (numbers and some[0] <= numbers[-1]):
            raise InvalidSetting(f"{what} must rise, got {text!r}")
        numbers += some
    return numbers


def _whole(text: str, least: int) -> int:
    try:
        number = int(text)
    except ValueError:
        number = least - 1
    if number < least:
        raise argparse.ArgumentTypeError(f"must be a whole number >= {least}, got {text!r}")
    return number


def _fraction(text: str, most: float) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not (0 < number <= most and math.isfinite(number)):
        rule = "a number > 0" if most == math.inf else f"a number > 0, up to {most:g}"
        raise argparse.ArgumentTypeError(f"must be {rule}, got {text!r}")
    return number
