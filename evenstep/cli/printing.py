"""Printing of results, without any package that an extra brings."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterable
from textwrap import fill
from typing import TextIO


def print_json(value: object, allow_nan: bool = True) -> None:
    """Print a value as indented JSON; without `allow_nan`, NaN raises ValueError."""
    json.dump(value, sys.stdout, indent=2, allow_nan=allow_nan)
    print()


def say(lines: Iterable[str], hanging: int = 0, file: TextIO | None = None) -> None:
    """Print lines, folded between words on a terminal; `hanging` indents the folded parts."""
    file = sys.stdout if file is None else file
    for line in lines:
        print(folded(line, width_of(file), hanging), file=file, flush=True)


def width_of(file: TextIO) -> int | None:
    """Return the columns of a terminal; None for anything else, which is not folded.

    A stream in place of standard output need not know what a terminal is.
    """
    is_terminal = getattr(file, "isatty", lambda: False)()
    return shutil.get_terminal_size().columns if is_terminal else None


def folded(line: str, width: int | None, hanging: int = 0) -> str:
    """Return a line, folded between words where it is wider; its indentation is kept.

    >>> print(folded("  one two three", 9, hanging=1))
      one two
       three
    """
    if width is None or len(line) <= width:
        return line
    indent = line[: len(line) - len(line.lstrip(" "))]
    return fill(
        line.lstrip(" "),
        width,
        initial_indent=indent,
        subsequent_indent=indent + " " * hanging,
        break_long_words=False,
        break_on_hyphens=False,
    )
