"""Events as a table of the page: what happened, and when."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from evenstep.runlog.event import Event
from evenstep.runlog.picture import readable
from evenstep.runlog.run_log import RunLog
from evenstep.runlog.words import duration

ROWS = 100
"""In the table, at most: everything but plans comes first, then the last plans."""
_SIZES = 12


def event_table(run_log: RunLog) -> str:
    """Return the table, with everything from the log escaped."""
    events = [event for event in run_log.events if _words(event)]
    shown = _chosen(events)
    if not shown:
        return "<p>Nothing was noted.</p>"
    rows = "".join(
        f"<tr><td>{event.iteration}</td><td>{escape(event.kind)}</td>"
        f"<td>{escape(_words(event))}</td></tr>"
        for event in shown
    )
    table = (
        f'<table class="events"><tr><th>iteration</th><th>event</th><th></th></tr>{rows}</table>'
    )
    left_out = len(events) - len(shown)
    return table + (f'<p class="pale">and {left_out} more</p>' if left_out else "")


def _chosen(events: Sequence[Event]) -> list[Event]:
    """Return what is shown, in its order."""
    ranked = sorted(range(len(events)), key=lambda i: (events[i].kind in ("plan", "proposal"), -i))
    return [events[i] for i in sorted(ranked[:ROWS])]


def _words(event: Event) -> str:
    """Return an event in words.

    >>> _words(Event("plan", 3, plan=1, batch_sizes=[24, 8], reason="w1 is the straggler"))
    'batch sizes 24/8: w1 is the straggler'
    """
    sizes = event.batch_sizes or ()
    more = f"/... ({len(sizes)} workers)" if len(sizes) > _SIZES else ""
    listed = "/".join(map(str, sizes[:_SIZES])) + more
    worker = readable(event.worker or "", 60)
    expected = event.predicted_time
    words = {
        "plan": f"batch sizes {listed}",
        "proposal": f"batch sizes {listed} would have been used",
        "phase": f"phase {readable(event.phase or '', 60)}",
        "advice": f"{readable(event.advice or '', 60)} {worker}",
        "join": f"{worker} joined",
        "leave": f"{worker} left",
        "limit": f"{worker} gets at most {event.cap} samples",
        "note": readable(event.text or "", 200),
        "end": "the run ended",
    }[event.kind]
    if event.kind == "advice" and expected is not None:
        words += f": an iteration would then take {duration(expected)}"
    return words + (f": {readable(event.reason, 200)}" if event.reason else "")
