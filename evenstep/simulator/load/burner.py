"""A process that takes a share of a CPU, or holds memory, as it is told to through its input.

It is run as a script of its own and imports nothing of Evenstep, so that a hundred of them are
cheap. Its argument is `cpu` or `memory`; whoever started it writes lines with the share of a CPU to
take, or the bytes to hold. When the input ends,
which it also does when whoever wrote it was killed, the process ends too.
"""

import contextlib
import mmap
import os
import select
import signal
import sys
import time
from pathlib import Path

_INPUT, _OUTPUT = 0, 1
_PERIOD = 0.02
"""Seconds in which the share is kept."""
_BLOCK = 4 << 20
"""Bytes that are taken and given back at once."""
_NEVER = 3600.0


class Burner:
    """Uses up CPU time at a given rate, as far as the others let it."""

    def __init__(self) -> None:
        self._share = 0.0
        self._owed = 0.0
        self._last = time.perf_counter()
        self._used = time.process_time()

    def set(self, share: float) -> None:
        self._share = share

    def work(self) -> float:
        """Burn what is owed; return the seconds until more is."""
        now, used = time.perf_counter(), time.process_time()
        self._owed += self._share * (now - self._last) - (used - self._used)
        # What could not be had is not made up for: that would be a load at another time.
        self._owed = min(self._owed, _PERIOD)
        self._last, self._used = now, used
        while time.process_time() - used < self._owed and time.perf_counter() - now < _PERIOD:
            pass
        left = _PERIOD - (time.perf_counter() - now)
        return max(0.0, left) if self._share else _NEVER


class Holder:
    """Holds memory that is really there: every page of it has been written to."""

    def __init__(self) -> None:
        self._blocks: list[mmap.mmap] = []
        self._wanted = 0
        # Where memory runs out after all, this is what the kernel should end.
        with contextlib.suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text("1000")

    def set(self, num_bytes: float) -> None:
        self._wanted = int(num_bytes)

    def work(self) -> float:
        """Take or give back one block; return the seconds until there is more to do."""
        num_blocks = self._wanted // _BLOCK
        if len(self._blocks) > num_blocks:
            self._blocks.pop().close()
        elif len(self._blocks) < num_blocks:
            block = mmap.mmap(-1, _BLOCK)
            block[:: mmap.PAGESIZE] = bytes([1]) * (_BLOCK // mmap.PAGESIZE)
            self._blocks.append(block)
        return _NEVER if len(self._blocks) == num_blocks else 0.0


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    worker = Burner() if sys.argv[1] == "cpu" else Holder()
    os.write(_OUTPUT, b"ready\n")
    rest = b""
    while True:
        readable, _, _ = select.select([_INPUT], [], [], worker.work())
        if readable:
            told = os.read(_INPUT, 4096)
            if not told:
                return
            *lines, rest = (rest + told).split(b"\n")
            if lines:
                worker.set(float(lines[-1]))


if __name__ == "__main__":
    main()
