"""The reader: a whole file, or what there is of it, as a `RunLog`."""

from __future__ import annotations

import os
from pathlib import Path

from evenstep.errors import RunLogError
from evenstep.runlog.builder import RunLogBuilder
from evenstep.runlog.parser import RunLogParser
from evenstep.runlog.run_log import RunLog

_PIECE = 2**20


def read(path: str | os.PathLike[str]) -> RunLog:
    """Read a run log, also one that is still being written, or that ends in half a line.

    Raises RunLogError, with the number of the line, where anything but the last line is damaged.
    """
    parser = RunLogParser(str(path))
    builder = RunLogBuilder()
    with Path(path).open("rb") as file:
        while piece := file.read(_PIECE):
            for record in parser.feed(piece):
                builder.add(record)
    for record in parser.finish():
        builder.add(record)
    if parser.header is None:
        raise RunLogError(f"{path}: a run log must begin with a whole header line, got none")
    return builder.build(complete=not parser.cut)
