"""The reader: a whole file, or what there is of it, as a `RunLog`."""

from __future__ import annotations

import os
from pathlib import Path

from evenstep.errors import RunLogError
from evenstep.runlog.builder import RunLogBuilder
from evenstep.runlog.parser import RunLogParser
from evenstep.runlog.run_log import RunLog

_PIECE = 2**20
_END = 16
"""The beginning and the end of a long log are this part of the budget each."""


def read(path: str | os.PathLike[str], budget: int | None = None) -> RunLog:
    """Read a run log, also one that is still being written, or that ends in half a line.

    Of a file with more bytes than the `budget`, the beginning and the end are read, and between
    them all events and one in so many rows; the log says how many were passed over.

    Raises RunLogError, with the number of the line, where anything but the last line is damaged.
    """
    parser = RunLogParser(str(path))
    builder = RunLogBuilder()
    size = Path(path).stat().st_size
    every = 1 if budget is None else max(1, -(-size // budget))
    ends = 0 if budget is None else budget // _END
    with Path(path).open("rb") as file:
        while piece := file.read(_PIECE):
            is_between = ends <= file.tell() - len(piece) and file.tell() <= size - ends
            parser.every = every if is_between else 1
            for record in parser.feed(piece):
                builder.add(record)
    for record in parser.finish():
        builder.add(record)
    if parser.header is None:
        raise RunLogError(f"{path}: a run log must begin with a whole header line, got none")
    return builder.build(complete=not parser.cut, num_skipped=parser.num_skipped)
