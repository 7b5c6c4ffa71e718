"""A process that takes a share of a CPU or holds memory, controlled through its standard input.

It runs as a separate script and imports nothing of Evenstep, so that a hundred of them are cheap.
Its argument is `cpu` or `memory`; each input line is the share of a CPU to take or the bytes to
hold. The process ends at the end of its input, also when its parent was killed.
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
"""Seconds over which the share is averaged."""
_BLOCK = 4 << 20
"""Bytes taken or released at once."""
_NEVER = 3600.0


class Burner:
    """Uses CPU time at a given rate, as far as other processes allow."""

    def __init__(self) -> None:
        self._share = 0.0
        self._owed = 0.0
        self._last = time.perf_counter()
        self._used = time.process_time()

    def set(self, share: float) -> None:
        self._share = share

    def work(self) -> float:
        """Use the CPU time that is due; return the seconds until more is due."""
        now, used = time.perf_counter(), time.process_time()
        self._owed += self._share * (now - self._last) - (used - self._used)
        # Missed CPU time is not made up for: that would be load at another time.
        self._owed = min(self._owed, _PERIOD)
        self._last, self._used = now, used
        while time.process_time() - used < self._owed and time.perf_counter() - now < _PERIOD:
            pass
        left = _PERIOD - (time.perf_counter() - now)
        return max(0.0, left) if self._share else _NEVER


class Holder:
    """Holds resident memory: every page has been written to."""

    def __init__(self) -> None:
        self._blocks: list[mmap.mmap] = []
        self._wanted = 0
        # If memory runs out, the kernel should end this process first.
        with contextlib.suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text("1000")

    def set(self, num_bytes: float) -> None:
        self._wanted = int(num_bytes)

    def work(self) -> float:
        """Take or release one block; return the seconds until there is more to do."""
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
            received = os.read(_INPUT, 4096)
            if not received:
                return
            *lines, rest = (rest + received).split(b"\n")
            if lines:
                worker.set(float(lines[-1]))


if __name__ == "__main__":
    main()
