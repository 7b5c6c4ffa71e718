"""Settings in short form: ``name:setting=value,setting=value``, as on a command line."""

from __future__ import annotations

import difflib
import inspect
import sys
from collections.abc import Callable, Mapping
from numbers import Integral
from typing import TypeVar

from evenstep.errors import EvenstepError, InvalidSetting

T = TypeVar("T")
Value = bool | int | float | str | tuple[float, ...]

LONGEST_FORM = 8_192
"""Characters of a short form."""
LARGEST_WHOLE = 2**53
"""Up to here, all whole numbers are exact as floats."""
_LONGEST_NUMBER = 40
"""Characters of a number in a short form; reading longer ones takes ever longer."""


def parse_spec(spec: str) -> tuple[str, dict[str, Value]]:
    """Split a short form into its name and its settings.

    >>> parse_spec("stepwise:step=10,literal=true")
    ('stepwise', {'step': 10, 'literal': True})
    """
    if len(spec) > LONGEST_FORM:
        raise InvalidSetting(
            f"a short form must have at most {LONGEST_FORM} characters, got {len(spec)}"
        )
    name, colon, rest = spec.partition(":")
    settings: dict[str, Value] = {}
    for item in rest.split(",") if colon else ():
        key, equals, text = item.partition("=")
        if not (key and equals and text):
            raise InvalidSetting(f"settings of {name!r} must be setting=value, got {item!r}")
        if key in settings:
            raise InvalidSetting(f"settings of {name!r} must be given once each, got {key!r} twice")
        settings[key] = _parse_value(text)
    return name, settings


def construct(make: Callable[..., T], name: str, settings: Mapping[str, Value], *args: object) -> T:
    """Call `make` with these settings, or raise InvalidSetting for one that it does not have."""
    known = list(inspect.signature(make).parameters)[len(args) :]
    for key in settings:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f" (did you mean {near[0]!r}?)" if near else ""
            rule = f"must be one of {', '.join(known)}" if known else "cannot be given, it has none"
            raise InvalidSetting(f"a setting of {name!r} {rule}, got {key!r}{hint}")
    parameters = list(inspect.signature(make).parameters.values())[len(args) :]
    for setting in parameters:
        needed = setting.default is setting.empty and setting.kind is setting.POSITIONAL_OR_KEYWORD
        if needed and setting.name not in settings:
            missing = setting.name
            raise InvalidSetting(f"{name!r} must have all its settings, got none for {missing!r}")
    try:
        return make(*args, **settings)
    except EvenstepError:
        raise
    except (TypeError, ValueError, ArithmeticError) as error:
        raise InvalidSetting(f"settings of {name!r} do not fit: {error}") from error


def require_whole(what: str, value: object, least: int = 1, most: int = LARGEST_WHOLE) -> None:
    """Raise InvalidSetting unless a setting is a whole number within bounds.

    >>> require_whole("step of stepwise", 2.5)
    Traceback (most recent call last):
    evenstep.errors.InvalidSetting: step of stepwise must be an integer, got 2.5
    """
    if not isinstance(value, Integral) or isinstance(value, bool):
        raise InvalidSetting(f"{what} must be an integer, got {value!r}")
    if int(value) < least:
        raise InvalidSetting(f"{what} must be >= {least}, got {value}")
    if int(value) > most:
        largest = "2^53" if most == LARGEST_WHOLE else f"{most:,}"
        raise InvalidSetting(f"{what} must be at most {largest}, got {_shortened(value)}")


def require_positive(what: str, value: object) -> None:
    """Raise InvalidSetting unless a setting is a plain number that is finite and > 0.

    >>> require_positive("bandwidth", -5.0)
    Traceback (most recent call last):
    evenstep.errors.InvalidSetting: bandwidth must be a finite number > 0, got -5.0
    """
    number = isinstance(value, int | float) and not isinstance(value, bool)
    # Compared so that an integer beyond all floats is refused, and not an OverflowError.
    if not (number and 0 < value <= sys.float_info.max):  # type: ignore[operator]
        raise InvalidSetting(f"{what} must be a finite number > 0, got {value!r}")


def _parse_value(text: str) -> Value:
    """Read a value: true or false, a number, numbers separated by slashes, or a word.

    >>> _parse_value("2/2/15"), _parse_value("0.2"), _parse_value("true")
    ((2.0, 2.0, 15.0), 0.2, True)
    """
    if text in ("true", "false"):
        return text == "true"
    if "/" in text:
        parts = [_number(part) for part in text.split("/")]
        if all(part is not None for part in parts):
            return tuple(float(part) for part in parts if part is not None)
    number = _number(text)
    return text if number is None else number


def _number(text: str) -> int | float | None:
    if len(text) > _LONGEST_NUMBER:
        return None
    try:
        return int(text) if text.lstrip("+-").isdecimal() else float(text)
    except ValueError:
        return None


def _shortened(value: object) -> str:
    """Return a number for a message.

    >>> _shortened(2**53 + 1), _shortened(10**400)
    ('9007199254740993', 'a number of 1329 bits')
    """
    bits = int(value).bit_length()  # type: ignore[call-overload]
    return str(value) if bits < 200 else f"a number of {bits} bits"
