"""Checks of the values in a run log: nothing in a file is trusted before it is checked."""

from __future__ import annotations

import reprlib
import sys
from collections.abc import Callable, Iterable
from numbers import Integral, Real
from typing import Any

from evenstep.core import UNLIMITED
from evenstep.errors import InvalidSetting

Rule = tuple[Callable[[Any], bool], str]
"""A test of a value, and a description of valid values."""


def check(what: str, value: object, rule: Rule) -> None:
    """Raise InvalidSetting where the value breaks the rule.

    >>> check("plan", -1, COUNT)
    Traceback (most recent call last):
    evenstep.errors.InvalidSetting: plan must be an integer from 0 to 2^53, got -1
    """
    holds, words = rule
    if not holds(value):
        raise InvalidSetting(f"{what} must be {words}, got {short(value)}")


def short(value: object) -> str:
    """Return the value for an error message, shortened where it is long."""
    return reprlib.repr(value)


def one_of(values: Iterable[str]) -> Rule:
    """Return the rule that a value is one of these words."""
    allowed = tuple(values)
    return lambda value: value in allowed, "one of " + ", ".join(map(repr, allowed))


def is_count(value: Any) -> bool:
    return is_natural(value) and value <= UNLIMITED


def is_natural(value: Any) -> bool:
    # The first test is the usual case, and much faster.
    is_integer = type(value) is int or (isinstance(value, Integral) and not isinstance(value, bool))
    return is_integer and value >= 0


def is_finite(value: Any) -> bool:
    # Not math.isfinite: a file may hold an integer that is too large for a float.
    is_real = isinstance(value, Real) and not isinstance(value, bool)
    return is_real and -sys.float_info.max <= value <= sys.float_info.max


def is_text(value: object) -> bool:
    return isinstance(value, str)


def is_name(value: object) -> bool:
    return isinstance(value, str) and value != ""


def are_counts(value: object) -> bool:
    if not isinstance(value, (list, tuple)):
        return False
    # A log has millions of them, so values of the usual type are checked together.
    if _INTEGER.issuperset(map(type, value)):
        return not value or (min(value) >= 0 and max(value) <= UNLIMITED)
    return all(map(is_count, value))


def are_names(value: object) -> bool:
    return isinstance(value, tuple) and all(map(is_name, value)) and len(set(value)) == len(value)


_INTEGER = frozenset((int,))

COUNT: Rule = (is_count, "an integer from 0 to 2^53")
COUNTS: Rule = (are_counts, "a list of integers from 0 to 2^53")
SEED: Rule = (is_natural, "an integer >= 0")
NUMBER: Rule = (is_finite, "a finite number")
TEXT: Rule = (is_text, "a string")
NAME: Rule = (is_name, "a non-empty string")
NAMES: Rule = (are_names, "a list of different non-empty strings")
