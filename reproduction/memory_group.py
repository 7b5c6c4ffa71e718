"""A control group that limits memory, where this process may make one (v1 or v2)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from evenstep.errors import EvenstepError
from evenstep.simulator.load.throttle import remove_group

_ROOT = Path("/sys/fs/cgroup")


@contextmanager
def memory_group(limit: int, root: Path = _ROOT) -> Iterator[str]:
    """Make a group that limits the memory of its processes, in bytes, cached files included."""
    try:
        group, file = _make(root)
        try:
            file.write_text(str(limit))
        except OSError:
            remove_group(group)
            raise
    except OSError as problem:
        raise EvenstepError(
            f"memory cannot be limited here: {problem}; it takes Linux, the memory controller of "
            "cgroup v1 or v2 and the right to make groups there (usually root)"
        ) from None
    try:
        yield str(group)
    finally:
        remove_group(group)


def _make(root: Path) -> tuple[Path, Path]:
    """Make the group, and return it with the file that holds its limit."""
    name = f"evenstep-memory-{os.getpid()}"
    if (root / "memory" / "memory.limit_in_bytes").is_file():
        group = root / "memory" / name
        group.mkdir()
        return group, group / "memory.limit_in_bytes"
    controllers = root / "cgroup.controllers"
    if not (controllers.is_file() and "memory" in controllers.read_text().split()):
        raise OSError(f"{root} has no memory controller")
    (root / "cgroup.subtree_control").write_text("+memory")
    group = root / name
    group.mkdir()
    return group, group / "memory.max"
