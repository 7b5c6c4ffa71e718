"""What the threads of a process group still hold of Python's, and waiting until they let go of it.

A thread of gloo lets go of a tensor or a callback a moment after whoever waits for it went on, and
needs the interpreter for that. When it comes for it while the interpreter is already shutting
down, the process ends with SIGABRT, after a training that went well. And when it has come for it
while the process forks, as a loader does that starts loading processes, Python before 3.12 leaves
a lock of its own taken in the child, which then hangs within fork, and the loader waits for it.
"""

from __future__ import annotations

import atexit
import os
import sys
import time
import weakref
from collections import deque
from functools import cache
from typing import Any, TypeVar

Thing = TypeVar("Thing")

_PATIENCE = 5.0
"""Seconds to wait at exit: an exchange that others left unfinished is held for much longer."""
_BEFORE_FORK = 0.05
"""Seconds to wait before a fork: what a loop holds itself is not let go of."""
_MOMENT = 0.002
"""Seconds in which a thread that has let go of everything is done with the interpreter."""

_everybody: weakref.WeakSet[InflightTensors] = weakref.WeakSet()


class InflightTensors:
    """Watches what was handed to a process group, and holds nothing of it itself."""

    def __init__(self) -> None:
        self._watched: deque[weakref.ref[Any]] = deque()
        atexit.register(self._wait_at_exit)
        _everybody.add(self)
        _wait_before_forks()

    def watch(self, thing: Thing) -> Thing:
        """Return a tensor or a callback that is about to be handed to a process group."""
        while self._watched and self._watched[0]() is None:
            self._watched.popleft()
        self._watched.append(weakref.ref(thing))
        return thing

    def wait(self, patience: float = _PATIENCE) -> bool:
        """Wait until nothing is held any more; return whether that is so."""
        deadline = time.monotonic() + patience
        while any(watched() is not None for watched in self._watched):
            if time.monotonic() > deadline:
                return False
            time.sleep(0.001)
        return True

    def _wait_at_exit(self) -> None:
        self.wait()
        _let_others_through()


@cache
def _wait_before_forks() -> None:
    """Let whoever forks wait, from now on, until the threads of process groups are through."""
    if sys.version_info < (3, 12):
        os.register_at_fork(before=_before_fork)


def _before_fork() -> None:
    deadline = time.monotonic() + _BEFORE_FORK
    for inflight in list(_everybody):
        inflight.wait(max(0.0, deadline - time.monotonic()))
    _let_others_through()


def _let_others_through() -> None:
    """Give way to threads with what others have handed over, which nobody watches."""
    time.sleep(_MOMENT)
