"""The three parties of one hand-over, with their disks as plain records and no network between."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from evenstep.partitions.handover import giver, receiver, task
from evenstep.partitions.handover.protocol import (
    MANAGER,
    Begin,
    Chunk,
    Envelope,
    Offer,
    Reaction,
    chunk_checksum,
    chunk_of,
)
from evenstep.partitions.handover.task import Task

GIVER, RECEIVER = "w0", "w1"
SAMPLES = (3, 4, 5)
GIVERS_OWN, RECEIVERS_OWN = frozenset({1, 2, *SAMPLES}), frozenset({7, 8})
LAYOUT = "x"
TASK = Task("m1-0", GIVER, RECEIVER, SAMPLES, chunk_size=2)


@dataclass(frozen=True)
class Disks:
    """What is durable, the records of giver, receiver and manager: all that a crash leaves."""

    giver: Any = None
    receiver: Any = None
    task: Any = TASK

    @property
    def givers_index(self) -> frozenset[int]:
        given = self.giver is not None and self.giver.phase in ("given", "settled")
        return GIVERS_OWN - set(SAMPLES) if given else GIVERS_OWN

    @property
    def receivers_index(self) -> frozenset[int]:
        """What is listed, and what is staged and given: the definition of protocol.py."""
        adopted = self.receiver is not None and self.receiver.phase == "adopted"
        staged = self.receiver is not None and self.receiver.phase == "staged"
        given = self.giver is not None and self.giver.phase == "given"
        return RECEIVERS_OWN | set(SAMPLES) if adopted or (staged and given) else RECEIVERS_OWN

    @property
    def over(self) -> bool:
        return all(r is None or r.final for r in (self.giver, self.receiver, self.task))


def deliver(disks: Disks, envelope: Envelope, room: int = 100) -> tuple[str, Reaction[Any]]:
    """Return whose reaction to a message it is, and the reaction."""
    message, sender = envelope.message, envelope.sender
    if envelope.to == MANAGER:
        return "task", task.manage(disks.task, message, sender)
    if envelope.to == GIVER:
        if isinstance(message, Begin):
            return "giver", giver.begin(disks.giver, message, GIVERS_OWN, LAYOUT)
        return "giver", giver.give(disks.giver, message, sender)
    if isinstance(message, Offer):
        held = RECEIVERS_OWN
        reaction = receiver.consider(disks.receiver, message, sender, held, LAYOUT, 8, room)
        return "receiver", reaction
    return "receiver", receiver.take(disks.receiver, message, sender)


def retries(disks: Disks) -> Iterator[tuple[str, Reaction[Any]]]:
    """Return what each party does by itself, after a crash or when no answer comes."""
    if disks.giver is not None:
        yield "giver", Reaction(send=giver.retry(disks.giver))
    if disks.receiver is not None:
        yield "receiver", receiver.recover(disks.receiver, disks.receiver.chunks)
    if disks.task is not None:
        yield "task", Reaction(send=task.retry(disks.task))
        yield "task", task.commit(disks.task)


def written(disks: Disks, party: str, reaction: Reaction[Any]) -> Disks:
    if reaction.record is None:
        return disks
    return replace(disks, **{party: reaction.record})


def sent(party: str, reaction: Reaction[Any], disks: Disks) -> tuple[Envelope, ...]:
    """Return the messages of a reaction in the order in which they are sent."""
    sender = {"giver": GIVER, "receiver": RECEIVER, "task": MANAGER}[party]
    envelopes = [Envelope(sender, to, message) for to, message in reaction.send]
    for number in reaction.chunks:
        assert disks.giver is not None
        payload = bytes(chunk_of(SAMPLES, disks.giver.chunk_size, number))
        checksum = chunk_checksum(disks.giver.hand_over, number, payload)
        chunk = Chunk(disks.giver.hand_over, number, payload, checksum)
        envelopes.append(Envelope(GIVER, disks.giver.receiver, chunk))
    return tuple(envelopes)


def assert_exactly_one_index_has_each_sample(disks: Disks) -> None:
    assert disks.givers_index.isdisjoint(disks.receivers_index), disks
    assert disks.givers_index | disks.receivers_index == GIVERS_OWN | RECEIVERS_OWN, disks


def finish(disks: Disks, room: int = 100, rounds: int = 10) -> Disks:
    """Let all parties recover, over a network that now works, until the hand-over is over."""
    for _ in range(rounds):
        if disks.over:
            return disks
        queue: list[Envelope] = []
        for party, reaction in retries(disks):
            disks = written(disks, party, reaction)
            queue += sent(party, reaction, disks)
        while queue:
            party, reaction = deliver(disks, queue.pop(0), room)
            disks = written(disks, party, reaction)
            assert_exactly_one_index_has_each_sample(disks)
            queue += sent(party, reaction, disks)
    raise AssertionError(f"not over after {rounds} rounds: {disks}")
