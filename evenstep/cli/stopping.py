"""Orderly stopping: signals end a command's work, so that it can clean up."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stop:
    """An event that Ctrl-C and SIGTERM set inside its context."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._number: signal.Signals | None = None
        self._before: dict[signal.Signals, object] = {}

    def __enter__(self) -> Stop:
        self._before = {number: signal.signal(number, self._stop) for number in _SIGNALS}
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    @property
    def name(self) -> str | None:
        """The name of the received signal, if there was one."""
        return None if self._number is None else self._number.name

    @property
    def exit_code(self) -> int:
        """0, or 128 plus the number of the signal, as shells expect."""
        return 0 if self._number is None else 128 + self._number

    def is_set(self) -> bool:
        return self._event.is_set()

    def wait(self, seconds: float) -> None:
        self._event.wait(seconds)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self._number = signal.Signals(number)
        self._event.set()


@contextmanager
def interrupt_on_signals() -> Iterator[None]:
    """Raise KeyboardInterrupt on all signals that end a process; further ones are ignored."""
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {each: signal.getsignal(each) for each in signals}
    # Signals that the parent process ignores, as nohup does, stay ignored.
    handled = [each for each, handler in before.items() if handler is not signal.SIG_IGN]

    def interrupt(number: int, frame: FrameType | None) -> None:
        for each in handled:
            signal.signal(each, signal.SIG_IGN)
        raise KeyboardInterrupt

    for each in handled:
        signal.signal(each, interrupt)
    try:
        yield
    finally:
        for each in handled:
            signal.signal(each, before[each])
