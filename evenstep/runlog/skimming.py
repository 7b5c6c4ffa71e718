"""Skimming: reads a part of a very long run log, so that it can be shown within seconds.

Each line is complete in itself, so a reader may leave out iterations. Members and limits change
with events, so only the events about plans are left out.
"""

from __future__ import annotations

from evenstep.runlog.parser import MAX_LINE

WHOLE = 10 * 2**20
"""Bytes up to which a run log is read line by line; a longer one is thinned to about as much."""
TAIL = 2 * 2**20
"""Bytes at the end that are always read line by line."""

_EVENT = b'\n{"event":"'
_PLANS = (b'\n{"event":"plan"', b'\n{"event":"proposal"')


class Skimmer:
    """Passes on about one in `every` lines, and all events but plans.

    >>> skimmer = Skimmer(every=2)
    >>> skimmer.pass_on(b'{"evenstep_run_log":1}\\n{"iteration":0}\\n{"iteration":1}\\n{"iter')
    b'{"evenstep_run_log":1}\\n'
    >>> skimmer.pass_on(b'ation":2}\\n{"iteration":3}\\n{"event":"end"}\\n')
    b'{"iteration":2}\\n{"event":"end"}\\n'
    """

    def __init__(self, every: int) -> None:
        self.every = every
        self._due = 0
        """Bytes, from the start of the rest on, that are left out except for events."""
        self._rest = b""

    def pass_on(self, text: bytes) -> bytes:
        """Return the selected ones of the lines that this text completes."""
        # With a line break before every line, a line can be found by its beginning.
        text = b"\n" + self._rest + text
        end = text.rfind(b"\n")
        kept: list[bytes] = []
        at = 0
        while (at := self._next(text, at, end)) < end:
            after = text.index(b"\n", at + 1)
            kept.append(text[at + 1 : after + 1])
            if at >= self._due:
                # Lines of the same kind have about the same length.
                self._due = after + (self.every - 1) * (after - at)
            at = after
        self._rest = text[end + 1 :]
        self._due = max(0, self._due - end)
        if len(self._rest) > MAX_LINE:
            # No line of a run log is that long; the parser raises the error.
            kept.append(self.rest())
        return b"".join(kept)

    def rest(self) -> bytes:
        """Return the incomplete last line, and forget it."""
        rest, self._rest = self._rest, b""
        return rest

    def _next(self, text: bytes, at: int, end: int) -> int:
        """Return the line break before the next selected line, or `end`."""
        due = text.find(b"\n", max(at, self._due), end)
        if due < 0:
            due = end
        event = text.find(_EVENT, at, due)
        while event >= 0 and text.startswith(_PLANS, event):
            event = text.find(_EVENT, event + 1, due)
        return due if event < 0 else event


def skimmer_for(size: int) -> tuple[Skimmer, int]:
    """Return the skimmer of a log of this size, and the byte up to which it is used.

    >>> skimmer_for(1000)[1], skimmer_for(10 * WHOLE)[0].every
    (0, 13)
    """
    if size <= WHOLE:
        return Skimmer(1), 0
    return Skimmer(-(-(size - TAIL) // (WHOLE - TAIL))), size - TAIL
