"""The parser: from text, as it comes, to records. No I/O, so it can follow a file that grows."""

from __future__ import annotations

from evenstep.errors import InvalidSetting, RunLogError
from evenstep.runlog.checks import NAME, check
from evenstep.runlog.decoding import event_of, header_of, object_of, row_of
from evenstep.runlog.event import EVENTS, Event
from evenstep.runlog.header import Header
from evenstep.runlog.iteration_row import IterationRow

Record = Header | IterationRow | Event

MAX_LINE = 2**26
"""Bytes of the longest line that is believed to be one: enough for a million workers."""

_ROW = b'{"iteration":'


class RunLogParser:
    """Turns the text of a run log into records, whatever pieces it comes in.

    Damage is a RunLogError with the number of the line. The records before it are not lost: where
    a piece has some, they are returned, and the error comes with the next call.

    >>> parser = RunLogParser()
    >>> parser.feed('{"evenstep_run_log":1,"source":"simulated","job":"G","workers":["w0"],')
    []
    >>> [header] = parser.feed('"total":8,"policy":"even","predictor":"ema"}\\n{"iteration":0,')
    >>> header.workers, parser.cut
    (('w0',), True)
    """

    def __init__(self, name: str = "run log") -> None:
        self._name = name
        self._rest = b""
        self._line = 0
        self._rows = 0
        self._last_iteration = -1
        self._damage: RunLogError | None = None
        self.header: Header | None = None
        self.every = 1
        """Of rows, one in so many is looked at; the others are passed over, whatever they hold."""
        self.num_skipped = 0
        """Rows that were passed over."""
        self.workers: tuple[str, ...] = ()
        """The workers now: the order of the arrays of the next row."""

    @property
    def cut(self) -> bool:
        """Whether the last line has begun and not ended."""
        return self._rest.strip() != b""

    def feed(self, text: str | bytes) -> list[Record]:
        """Return the records that this piece of text completes."""
        if self._damage is not None:
            raise self._damage
        if isinstance(text, str):
            text = text.encode("utf-8", "surrogatepass")
        *lines, self._rest = (self._rest + text).split(b"\n")
        records: list[Record] = []
        try:
            for line in lines:
                self._line += 1
                record = self._take(line)
                if record is not None:
                    records.append(record)
            self._check_rest()
        except InvalidSetting as problem:
            self._damage = RunLogError(f"{self._name}, line {self._line}: {problem}")
            if not records:
                raise self._damage from None
        return records

    def finish(self) -> list[Record]:
        """Return the last record where its line lacks nothing but its end.

        To be called when no more text comes. `cut` tells afterwards whether half a line is left.
        """
        if self._damage is not None:
            raise self._damage
        try:
            object_of(self._rest)
        except InvalidSetting:
            return []
        return self.feed("\n")

    def _take(self, line: bytes) -> Record | None:
        if not line.strip() or self._is_skipped(line):
            return None
        data = object_of(line)
        if self.header is None:
            self.header = header_of(data)
            self.workers = tuple(self.header.workers)
            return self.header
        if "event" in data:
            check("event", data["event"], NAME)
            # A kind that is not known comes from a newer Evenstep, and is no damage.
            return self._take_event(event_of(data)) if data["event"] in EVENTS else None
        row = row_of(data, self.workers)
        if row.iteration <= self._last_iteration:
            raise InvalidSetting(
                f"iteration must rise, got {row.iteration} after {self._last_iteration}"
            )
        self._last_iteration = row.iteration
        return row

    def _is_skipped(self, line: bytes) -> bool:
        """Whether a line is a row, as our writer begins them, that is not looked at."""
        if not line.startswith(_ROW):
            return False
        # Rows are counted, not lines: where a plan follows every row, every other line is one.
        self._rows += 1
        if self._rows % self.every == 0:
            return False
        self.num_skipped += 1
        return True

    def _take_event(self, event: Event) -> Event:
        if event.workers is not None:
            self.workers = tuple(event.workers)
        if event.batch_sizes is not None and len(event.batch_sizes) != len(self.workers):
            raise InvalidSetting(
                f"batch_sizes must be a list with one entry per worker ({len(self.workers)}), "
                f"got {len(event.batch_sizes)} entries"
            )
        return event

    def _check_rest(self) -> None:
        """Refuse early what can never become a line, such as gigabytes of something else."""
        if len(self._rest) > MAX_LINE:
            self._line += 1
            raise InvalidSetting(f"a line must have at most {MAX_LINE} bytes")
        if self.header is None and self._rest.lstrip()[:1] not in (b"", b"{"):
            self._line += 1
            object_of(self._rest)
