"""The giver's side of a hand-over, as pure functions over its record."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Literal

from evenstep.partitions.handover.protocol import (
    MANAGER,
    Adopted,
    Begin,
    Cancel,
    Commit,
    Done,
    Failed,
    Given,
    Message,
    Offer,
    Reaction,
    Ready,
    Refused,
    Staged,
    Wanted,
    Withdrawn,
    num_chunks,
    wrong_terms,
)


@dataclass(frozen=True)
class GiverRecord:
    """The giver's record of a hand-over. While it is `offered`, its samples are in no other one."""

    hand_over: str
    receiver: str
    samples: tuple[int, ...]
    chunk_size: int
    layout: str
    phase: Literal["offered", "given", "settled", "withdrawn"]
    reason: str = ""

    @property
    def other(self) -> str:
        """The other party."""
        return self.receiver

    @property
    def final(self) -> bool:
        """Whether the hand-over is over."""
        return self.phase in ("settled", "withdrawn")


def begin(
    record: GiverRecord | None, message: Begin, free: Collection[int], layout: str
) -> Reaction[GiverRecord]:
    """React to Begin; `free` are the samples in the index that no other hand-over offers.

    >>> reaction = begin(None, Begin("m1-0", "w1", (3, 4), 10), {3, 4, 5}, "x")
    >>> reaction.record.phase, reaction.send[0][0]
    ('offered', 'w1')
    >>> begin(None, Begin("m1-0", "w1", (3, 9), 10), {3, 4, 5}, "x").send[0][1]
    Failed(hand_over='m1-0', reason='sample 9 must be in the index, and in no other hand-over')
    """
    if record is not None:
        return Reaction(send=retry(record))
    record = GiverRecord(
        message.hand_over,
        message.receiver,
        message.samples,
        message.chunk_size,
        layout,
        "offered",
    )
    wrong = _wrong(message, free)
    if wrong:
        return _withdraw(record, wrong, tell_receiver=False)
    return Reaction(record, retry(record))


def give(record: GiverRecord | None, message: Message, sender: str) -> Reaction[GiverRecord]:
    """React to any other message."""
    if record is None:
        return _of_unknown(message, sender)
    if isinstance(message, (Commit, Cancel)):
        return _decide(record, message)
    if sender != record.receiver or not isinstance(message, (Wanted, Staged, Refused, Adopted)):
        return Reaction()
    if record.phase == "withdrawn":
        return Reaction(send=((sender, Withdrawn(record.hand_over, record.reason)),))
    if isinstance(message, Wanted) and record.phase == "offered":
        last = num_chunks(len(record.samples), record.chunk_size)
        return Reaction(chunks=tuple(number for number in message.numbers if 0 <= number < last))
    if isinstance(message, Staged) and record.phase == "offered":
        return Reaction(send=((MANAGER, Ready(record.hand_over)),))
    if isinstance(message, Staged) and record.phase == "given":
        return Reaction(send=retry(record))
    if isinstance(message, Refused) and record.phase == "offered":
        return _withdraw(record, f"{sender} refused: {message.reason}", tell_receiver=False)
    if isinstance(message, Adopted) and record.phase == "given":
        settled = replace(record, phase="settled", samples=())
        return Reaction(settled, retry(settled))
    return Reaction()


def withdraw(record: GiverRecord, reason: str) -> Reaction[GiverRecord]:
    """Withdraw, for example where rows are damaged; too late once the samples are given."""
    return _withdraw(record, reason) if record.phase == "offered" else Reaction(send=retry(record))


def retry(record: GiverRecord) -> tuple[tuple[str, Message], ...]:
    """Return the messages to send after a crash, or when no answer comes."""
    hand_over = record.hand_over
    if record.phase == "offered":
        offer = Offer(hand_over, record.samples, record.chunk_size, record.layout)
        return ((record.receiver, offer),)
    if record.phase == "given":
        return ((record.receiver, Given(hand_over)),)
    if record.phase == "settled":
        return ((MANAGER, Done(hand_over)),)
    return ((MANAGER, Failed(hand_over, record.reason)),)


def _decide(record: GiverRecord, message: Commit | Cancel) -> Reaction[GiverRecord]:
    if record.phase != "offered":
        return Reaction(send=retry(record))
    if isinstance(message, Cancel):
        return _withdraw(record, message.reason)
    given = replace(record, phase="given")
    return Reaction(given, retry(given))


def _of_unknown(message: Message, sender: str) -> Reaction[GiverRecord]:
    """React where there is no record: nothing was ever offered, or the disk is another one."""
    hand_over, reason = message.hand_over, "the giver has no record of it"
    if isinstance(message, Cancel):
        # Final: the Begin that was overtaken must not start it later.
        record = GiverRecord(hand_over, "", (), 1, "", "withdrawn", message.reason)
        return Reaction(record, retry(record))
    if isinstance(message, Commit):
        return Reaction(send=((MANAGER, Failed(hand_over, reason)),))
    if isinstance(message, (Wanted, Staged)):
        return Reaction(send=((sender, Withdrawn(hand_over, reason)),))
    return Reaction()


def _withdraw(
    record: GiverRecord, reason: str, tell_receiver: bool = True
) -> Reaction[GiverRecord]:
    withdrawn = replace(record, phase="withdrawn", reason=reason, samples=())
    send = retry(withdrawn)
    if tell_receiver:
        send = ((record.receiver, Withdrawn(record.hand_over, reason)), *send)
    return Reaction(withdrawn, send)


def _wrong(message: Begin, free: Collection[int]) -> str:
    wrong = wrong_terms(message.hand_over, message.samples, message.chunk_size)
    if wrong:
        return wrong
    missing = next((sample for sample in message.samples if sample not in free), None)
    if missing is not None:
        return f"sample {missing} must be in the index, and in no other hand-over"
    return ""
