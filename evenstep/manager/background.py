"""Work off the thread that serves rounds: making planners, and checking settings from outside.

`Background` is a function: it does a piece of work somewhere, and calls back on the serving thread
with its result or its exception.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

Background = Callable[[Callable[[], Any], Callable[[Any], None]], None]


def at_once(work: Callable[[], Any], then: Callable[[Any], None]) -> None:
    """Do a piece of work here and now."""
    then(_outcome(work))


class OnAThread:
    """Does one piece of work at a time, on a thread of its own."""

    def __init__(self, call_soon: Callable[[Callable[[], None]], object]) -> None:
        self._call_soon = call_soon
        """Calls a function on the serving thread; any thread may call it."""
        self._thread = ThreadPoolExecutor(1, "evenstep-making")

    def __call__(self, work: Callable[[], Any], then: Callable[[Any], None]) -> None:
        def do() -> None:
            result = _outcome(work)
            self._call_soon(lambda: then(result))

        self._thread.submit(do)

    def close(self) -> None:
        """Abandon what waits."""
        self._thread.shutdown(wait=True, cancel_futures=True)


def _outcome(work: Callable[[], Any]) -> Any:
    try:
        return work()
    except Exception as error:
        # Its traceback would keep alive what was being made, which may be large.
        error.__context__ = error.__cause__ = None
        return error.with_traceback(None)
