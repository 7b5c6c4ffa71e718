"""A lock that keeps a folder to one process, and is released when that process ends."""

from __future__ import annotations

import fcntl
from pathlib import Path
from typing import IO


def lock_folder(folder: Path) -> IO[str] | None:
    """Lock a folder for as long as the result is kept open; None where another process has it."""
    file = (folder / ".lock").open("w")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        return None
    return file
