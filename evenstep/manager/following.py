"""Following: the event stream of one follower, from where it was last."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from evenstep.manager.events import EventStream, encode

MAX_FOLLOWERS = 64
HEARTBEAT = 15.0
"""Seconds without news after which a line is sent, so that a dead connection is noticed."""
AT_ONCE = 64 * 1024
"""Bytes that are handed to a follower before it must have taken them."""


async def follow(
    events: EventStream, last: int | None, job: str | None
) -> AsyncGenerator[bytes, None]:
    """Yield the events after the last one that a follower has seen, then the new ones.

    None for the last: only new ones. None for the job: those of all jobs.
    """
    events.num_followers += 1
    try:
        position = events.newest if last is None else last
        if position > events.newest:
            # It was given by an earlier manager, whose clock was ahead.
            position = events.oldest - 1
        yield b": the events of an evenstep manager\n\n"
        while True:
            if not await events.newer(position, HEARTBEAT):
                yield b": nothing new\n\n"
                continue
            if position + 1 < events.oldest:
                missed = {"event": "missed", "first": position + 1, "last": events.oldest - 1}
                position = events.oldest - 1
                yield encode("missed", missed, position)
            text, position = _some(events, position, job)
            if text:
                yield text
    finally:
        events.num_followers -= 1


def _some(events: EventStream, position: int, job: str | None) -> tuple[bytes, int]:
    """Return as many of the next events as are handed over at once, and where they end."""
    texts: list[bytes] = []
    size = 0
    for event in events.after(position):
        position = event.number
        if job is None or event.job == job:
            texts.append(event.text)
            size += len(event.text)
            if size >= AT_ONCE:
                break
    return b"".join(texts), position
