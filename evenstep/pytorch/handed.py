"""What the threads of a process group still hold of Python's, and waiting until they let go of it.

A thread of gloo lets go of a tensor or a callback a moment after whoever waits for it went on, and
needs the interpreter for that. When it comes for it while the interpreter is already shutting
down, the process ends with SIGABRT, after a training that went well.
"""

from __future__ import annotations

import atexit
import time
import weakref
from collections import deque
from typing import Any, TypeVar

Thing = TypeVar("Thing")

_PATIENCE = 5.0
"""Seconds to wait at exit: an exchange that others left unfinished is held for much longer."""


class Handed:
    """Watches what was handed to a process group, and holds nothing of it itself."""

    def __init__(self) -> None:
        self._watched: deque[weakref.ref[Any]] = deque()
        atexit.register(self.wait)

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
