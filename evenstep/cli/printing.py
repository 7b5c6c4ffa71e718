"""Printing of results and of progress, without any package that an extra brings."""

from __future__ import annotations

import json
import shutil
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from textwrap import fill
from typing import TextIO

_PATIENCE = 2.0
"""Seconds without output that need no explanation."""
_EVERY = 0.25
"""Seconds between two updates of the line."""


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


@contextmanager
def busy(what: str) -> Iterator[None]:
    """Show on a terminal that something takes longer than two seconds, and for how long.

    It is a single line on stderr, which is gone at the end.
    """
    if not sys.stderr.isatty():
        yield
        return
    done = threading.Event()
    thread = threading.Thread(target=_show_until, args=(done, what), daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _show_until(done: threading.Event, what: str) -> None:
    begun = time.monotonic()
    if done.wait(_PATIENCE):
        return
    # A name of a file may have control characters; a line that is too long would not be erased.
    room = shutil.get_terminal_size().columns - len(" ... 1000 s ")
    what = "".join(c if c.isprintable() else "?" for c in what)[:room]
    while True:
        line = f"{what} ... {time.monotonic() - begun:.0f} s"
        print(f"\r{line}\x1b[K", end="", file=sys.stderr, flush=True)
        if done.wait(_EVERY):
            break
    print("\r\x1b[K", end="", file=sys.stderr, flush=True)
