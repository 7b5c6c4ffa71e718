"""Skimming: what of a very long run log is read, so that it can be looked at within seconds.

A line stands for itself, so a reader may leave out iterations. Members and limits change with
events, so of those only plans are left out.
"""

from __future__ import annotations

from evenstep.runlog.parser import MAX_LINE

WHOLE = 10 * 2**20
"""Bytes up to which a run log is read line by line; a longer one is thinned to about as much."""
TAIL = 2 * 2**20
"""Bytes at the end that are read line by line in any case."""

_EVENT = b'\n{"event":"'
_PLANS = (b'\n{"event":"plan"', b'\n{"event":"proposal"')


class Skimmer:
    """Passes on one in about `every` lines, and all events but plans.

    >>> skimmer = Skimmer(every=2)
    >>> skimmer.pass_on(b'{"evenstep_run_log":1}\\n{"iteration":0}\\n{"iteration":1}\\n{"iter')
    b'{"evenstep_run_log":1}\\n'
    >>> skimmer.pass_on(b'ation":2}\\n{"iteration":3}\\n{"event":"end"}\\n')
    b'{"iteration":2}\\n{"event":"end"}\\n'
    """

    def __init__(self, every: int) -> None:
        self.every = every
        self._due = 0
        """Bytes of the rest and what follows it that are left out, but for events."""
        self._rest = b""

    def pass_on(self, text: bytes) -> bytes:
        """Return the lines to be read of those that this text completes."""
        # With a line break before every line, lines are found by what they begin with.
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
            # No line of a run log is so long; the parser will say so.
            kept.append(self.rest())
        return b"".join(kept)

    def rest(self) -> bytes:
        """Return the line that has begun, and forget it."""
        rest, self._rest = self._rest, b""
        return rest

    def _next(self, text: bytes, at: int, end: int) -> int:
        """Return the line break before the next line to be read, `end` where there is none."""
        due = text.find(b"\n", max(at, self._due), end)
        if due < 0:
            due = end
        event = text.find(_EVENT, at, due)
        while event >= 0 and text.startswith(_PLANS, event):
            event = text.find(_EVENT, event + 1, due)
        return due if event < 0 else event


def skimmer_for(size: int) -> tuple[Skimmer, int]:
    """Return how a log of so many bytes is skimmed, and up to which byte.

    >>> skimmer_for(1000)[1], skimmer_for(10 * WHOLE)[0].every
    (0, 13)
    """
    if size <= WHOLE:
        return Skimmer(1), 0
    return Skimmer(-(-(size - TAIL) // (WHOLE - TAIL))), size - TAIL
