"""Times from elsewhere: which format a file has, and what its reader makes of it."""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Sequence
from pathlib import Path

from evenstep.advice.kineto import observations_of_traces
from evenstep.advice.observations import Observations
from evenstep.advice.straggler_log import is_straggler_log, observations_of_straggler_log
from evenstep.advice.times_table import observations_of_table
from evenstep.errors import DataFileError, InvalidSetting

_GZIP = b"\x1f\x8b"


def read_times(
    paths: Sequence[str | os.PathLike[str]], batch_sizes: Sequence[int] | None = None
) -> Observations:
    """Read a table, the traces of the workers, or a log of straggler detection.

    `batch_sizes` are one for all workers, or one for each, where the files do not say them.
    Raises DataFileError where a file is none of them, or damaged.
    """
    texts = {str(path): _text(Path(path)) for path in paths}
    if not texts:
        raise InvalidSetting("times must come from at least 1 file, got none")
    traces = {name: text for name, text in texts.items() if text.lstrip()[:1] in ("{", "[")}
    if traces and len(traces) == len(texts):
        return observations_of_traces(traces, batch_sizes)
    if len(texts) > 1:
        raise InvalidSetting(
            "several files of times must all be traces of the PyTorch profiler, one per worker; "
            f"got {len(texts) - len(traces)} that are not"
        )
    [(name, text)] = texts.items()
    if is_straggler_log(text):
        return observations_of_straggler_log(name, text, batch_sizes)
    return observations_of_table(name, text, batch_sizes)


def _text(path: Path) -> str:
    content = path.read_bytes()
    try:
        if content.startswith(_GZIP):
            content = gzip.decompress(content)
        return content.decode("utf-8-sig")
    except (UnicodeDecodeError, EOFError, gzip.BadGzipFile, zlib.error) as problem:
        raise DataFileError(f"{path}: times must be text in UTF-8 ({problem})") from None
