"""The receiver's side of a hand-over, as pure functions over its record."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Literal

from evenstep.partitions.handover.protocol import (
    Adopted,
    Chunk,
    Given,
    Message,
    Offer,
    Reaction,
    Refused,
    Staged,
    Wanted,
    Withdrawn,
    chunk_checksum,
    num_chunks,
    wrong_terms,
)

WINDOW = 4
"""Chunks in transit at the same time; each one on disk lets the receiver ask for the next."""


@dataclass(frozen=True)
class ReceiverRecord:
    """The receiver's record of a hand-over."""

    hand_over: str
    giver: str
    samples: tuple[int, ...]
    chunk_size: int
    num_bytes: int
    phase: Literal["staging", "staged", "adopted", "dropped"]
    chunks: frozenset[int] = frozenset()
    """Numbers of the chunks that are on disk."""
    reason: str = ""

    @property
    def other(self) -> str:
        """The other party."""
        return self.giver

    @property
    def final(self) -> bool:
        """Whether the hand-over is over."""
        return self.phase in ("adopted", "dropped")

    @property
    def missing(self) -> tuple[int, ...]:
        """Numbers of the chunks that are not there yet."""
        every = range(num_chunks(len(self.samples), self.chunk_size))
        return tuple(number for number in every if number not in self.chunks)


def consider(
    record: ReceiverRecord | None,
    offer: Offer,
    giver: str,
    held: Collection[int],
    layout: str,
    row_bytes: int,
    room: int,
) -> Reaction[ReceiverRecord]:
    """React to an offer; `held` is what the index lists or stages, `room` the bytes that are free.

    >>> offer = Offer("m1-0", (3, 4), 1, "x")
    >>> consider(None, offer, "w0", set(), "x", row_bytes=8, room=100).send
    (('w0', Wanted(hand_over='m1-0', numbers=(0, 1))),)
    >>> consider(None, offer, "w0", set(), "x", row_bytes=8, room=10).send
    (('w0', Refused(hand_over='m1-0', reason='16 bytes must fit the quota, which leaves 10')),)
    """
    if record is not None:
        return Reaction(send=retry(record))
    num_bytes = row_bytes * len(offer.samples)
    record = ReceiverRecord(
        offer.hand_over, giver, offer.samples, offer.chunk_size, num_bytes, "staging"
    )
    wrong = _wrong(offer, held, layout) or _too_large(num_bytes, room)
    return refuse(record, wrong) if wrong else Reaction(record, retry(record))


def take(record: ReceiverRecord | None, message: Message, sender: str) -> Reaction[ReceiverRecord]:
    """React to any other message. A chunk must be durable before the record that counts it is."""
    if record is None or sender != record.giver:
        return Reaction()
    if isinstance(message, Chunk):
        return _count(record, message)
    if isinstance(message, Given) and record.phase in ("staged", "adopted"):
        adopted = replace(record, phase="adopted", samples=(), chunks=frozenset())
        return Reaction(None if record.final else adopted, retry(adopted))
    if isinstance(message, Withdrawn) and not record.final:
        return Reaction(_dropped(record, message.reason))
    return Reaction()


def recover(record: ReceiverRecord, chunks: frozenset[int]) -> Reaction[ReceiverRecord]:
    """Continue after a crash, with the chunks that are found on disk.

    >>> half = ReceiverRecord("m1-0", "w0", (3, 4), 1, 16, "staging")
    >>> recover(half, frozenset({0})).record.missing
    (1,)
    >>> recover(half, frozenset({0, 1})).record.phase
    'staged'
    """
    if record.phase != "staging":
        return Reaction(send=retry(record))
    return _with_chunks(record, chunks)


def refuse(record: ReceiverRecord, reason: str) -> Reaction[ReceiverRecord]:
    """Refuse, for example where the disk is full; too late once everything is staged."""
    if record.phase != "staging":
        return Reaction(send=retry(record))
    dropped = _dropped(record, reason)
    return Reaction(dropped, retry(dropped))


def retry(record: ReceiverRecord) -> tuple[tuple[str, Message], ...]:
    """Return the messages to send after a crash, or when no answer comes."""
    answer: Message
    if record.phase == "staging":
        answer = Wanted(record.hand_over, record.missing[:WINDOW])
    elif record.phase == "staged":
        answer = Staged(record.hand_over)
    elif record.phase == "adopted":
        answer = Adopted(record.hand_over)
    else:
        answer = Refused(record.hand_over, record.reason)
    return ((record.giver, answer),)


def _count(record: ReceiverRecord, chunk: Chunk) -> Reaction[ReceiverRecord]:
    if record.phase != "staging":
        return Reaction(send=retry(record))
    if chunk.number not in record.missing:
        return Reaction()
    if chunk_checksum(chunk.hand_over, chunk.number, chunk.payload) != chunk.checksum:
        return refuse(record, f"chunk {chunk.number} does not fit its checksum")
    reaction = _with_chunks(record, record.chunks | {chunk.number})
    if reaction.record is None or reaction.record.phase == "staged":
        return reaction
    ahead = chunk.number + WINDOW
    more = ((record.giver, Wanted(record.hand_over, (ahead,))),) if ahead in record.missing else ()
    return replace(reaction, send=more)


def _with_chunks(record: ReceiverRecord, chunks: frozenset[int]) -> Reaction[ReceiverRecord]:
    record = replace(record, chunks=chunks)
    if not record.missing:
        record = replace(record, phase="staged")
    return Reaction(record, retry(record))


def _dropped(record: ReceiverRecord, reason: str) -> ReceiverRecord:
    return replace(record, phase="dropped", reason=reason, samples=(), chunks=frozenset())


def _too_large(num_bytes: int, room: int) -> str:
    fits = num_bytes <= room
    return "" if fits else f"{num_bytes} bytes must fit the quota, which leaves {room}"


def _wrong(offer: Offer, held: Collection[int], layout: str) -> str:
    wrong = wrong_terms(offer.hand_over, offer.samples, offer.chunk_size)
    if wrong:
        return wrong
    if offer.layout != layout:
        return f"rows must be {layout}, got {offer.layout}"
    double = next((sample for sample in offer.samples if sample in held), None)
    return "" if double is None else f"sample {double} must not be here already"
