"""The hand-over, in every state that crashes, losses, repetitions and overtaking can lead to.

The network is a set of all messages that were ever sent: any of them may come now, again, or never.
A party that crashes has its record or not yet, and has sent none, some or all of its messages. So
following every way from the start, until nothing new is found, meets every crash of everybody at
every step under every order of messages; this is a proof for one hand-over of two chunks.
"""

import random
from collections import deque
from dataclasses import replace
from typing import Any

import pytest

from evenstep.partitions.handover import giver, receiver, task
from evenstep.partitions.handover.protocol import (
    MANAGER,
    Adopted,
    Begin,
    Cancel,
    Chunk,
    Commit,
    Envelope,
    Failed,
    Given,
    Offer,
    Reaction,
    Ready,
    Refused,
    Staged,
    Wanted,
    Withdrawn,
    chunk_checksum,
)
from tests.partitions.handover.parties import (
    GIVER,
    GIVERS_OWN,
    RECEIVER,
    SAMPLES,
    Disks,
    assert_exactly_one_index_has_each_sample,
    deliver,
    finish,
    retries,
    sent,
    written,
)


def whims(disks):
    """What parties may also do at any moment: cancel, back out, lose all memory."""
    if disks.task is not None:
        yield "task", task.cancel(disks.task, "whim")
    if disks.giver is not None:
        yield "giver", giver.withdraw(disks.giver, "whim")
    if disks.receiver is not None:
        yield "receiver", receiver.refuse(disks.receiver, "whim")


def spoiled(envelope):
    chunk = envelope.message
    return replace(envelope, message=replace(chunk, payload=chunk.payload[::-1] + b"!"))


def crashed_before_record(before, after):
    """The chunk is on disk, and the record that all are there is not yet."""
    if (
        after.receiver is None
        or after.receiver.phase != "staged"
        or before.receiver == after.receiver
    ):
        return after
    return replace(after, receiver=replace(after.receiver, phase="staging"))


def explore(moves, corrupt=False):
    """Return all reachable states of the disks; moves(disks) gives what parties do unasked."""
    start: tuple[Disks, frozenset[Envelope]] = (Disks(), frozenset())
    seen = {start}
    todo = deque(seen)
    while todo:
        disks, network = todo.popleft()
        reactions = list(moves(disks))
        for envelope in network:
            reactions.append(deliver(disks, envelope))
            if corrupt and isinstance(envelope.message, Chunk):
                reactions.append(deliver(disks, spoiled(envelope)))
        for party, reaction in reactions:
            after = written(disks, party, reaction)
            messages = sent(party, reaction, after)
            states = [(after, network | set(messages[:i])) for i in range(len(messages) + 1)]
            states.append((crashed_before_record(disks, after), network))
            states.append((replace(after, task=None), network))
            todo += [state for state in states if state not in seen]
            seen.update(states)
    return {disks for disks, _ in seen}, len(seen)


@pytest.fixture(scope="module")
def reachable():
    """All states where any party may back out at any time, and all where chunks are damaged."""
    fickle, num_fickle = explore(lambda disks: (*retries(disks), *whims(disks)))
    noisy, num_noisy = explore(retries, corrupt=True)
    return fickle | noisy, num_fickle + num_noisy


def test_every_phase_is_reached(reachable):
    disks, num_states = reachable
    assert num_states > 1000
    assert {d.giver and d.giver.phase for d in disks} == {
        None, "offered", "given", "settled", "withdrawn",
    }  # fmt: skip
    assert {d.receiver and d.receiver.phase for d in disks} == {
        None, "staging", "staged", "adopted", "dropped",
    }  # fmt: skip
    assert {d.task and d.task.phase for d in disks} == {
        None, "begun", "ready", "committing", "cancelling", "done", "failed",
    }  # fmt: skip


def test_every_sample_is_in_exactly_one_index_in_every_reachable_state(reachable):
    for disks in reachable[0]:
        assert_exactly_one_index_has_each_sample(disks)


def test_nobody_lets_go_before_the_other_has_everything(reachable):
    for disks in reachable[0]:
        if disks.giver is not None and disks.giver.phase == "given":
            assert disks.receiver is not None
            assert disks.receiver.phase in ("staged", "adopted")


def test_what_the_manager_is_told_is_true(reachable):
    for disks in reachable[0]:
        if disks.task is not None and disks.task.phase == "done":
            assert set(SAMPLES) <= disks.receivers_index
        if disks.task is not None and disks.task.phase == "failed":
            assert disks.givers_index == GIVERS_OWN
            assert disks.task.reason


def test_every_reachable_state_ends_once_everybody_recovers(reachable):
    for disks in reachable[0]:
        end = finish(disks)
        assert_exactly_one_index_has_each_sample(end)
        if disks.giver is not None and disks.giver.phase == "given":
            assert set(SAMPLES) <= end.receivers_index


def test_a_full_disk_leaves_everything_as_it_was_and_is_reported():
    end = finish(Disks(), room=23)
    assert (end.task.phase, end.task.reason) == (
        "failed",
        "w1 refused: 24 bytes must fit the quota, which leaves 23",
    )
    assert end.givers_index == GIVERS_OWN
    assert (end.receiver.phase, end.receiver.samples) == ("dropped", ())


def test_without_trouble_it_is_done():
    assert finish(Disks(), rounds=3).task.phase == "done"


@pytest.mark.parametrize("seed", range(300))
def test_random_schedules_with_a_lossy_network_end(seed):
    """Long runs in a real queue: messages are lost, repeated and overtaken, parties crash."""
    rng = random.Random(seed)
    disks = Disks()
    queue: list[Envelope] = []
    for _ in range(200):
        if queue and rng.random() < 0.7:
            envelope = queue.pop(rng.randrange(len(queue)))
            if rng.random() < 0.2:
                continue
            if rng.random() < 0.2:
                queue.append(envelope)
            party, reaction = deliver(disks, envelope)
        else:
            party, reaction = rng.choice([*retries(disks), ("task", Reaction())])
        if rng.random() < 0.1:
            continue  # crashed before the write
        disks = written(disks, party, reaction)
        assert_exactly_one_index_has_each_sample(disks)
        messages = sent(party, reaction, disks)
        kept = rng.randrange(len(messages) + 1) if rng.random() < 0.1 else len(messages)
        queue += messages[:kept]
        del queue[20:]
    assert finish(disks).task.phase == "done"


def record(**changes):
    begun: Any = giver.begin(None, Begin("m1-0", RECEIVER, SAMPLES, 2), GIVERS_OWN, "x").record
    return replace(begun, **changes)


@pytest.mark.parametrize(
    "begin, reason",
    [
        (Begin("h", RECEIVER, (), 2), "a hand-over must have samples, got none"),
        (Begin("h", RECEIVER, (3, 3), 2), "each sample of a hand-over must be named once"),
        (Begin("h", RECEIVER, (3,), 0), "chunk size must be >= 1, got 0"),
        (
            Begin("h", RECEIVER, (3, 99), 2),
            "sample 99 must be in the index, and in no other hand-over",
        ),
    ],
)
def test_a_begin_that_cannot_be_fails_for_good(begin, reason):
    reaction: Any = giver.begin(None, begin, GIVERS_OWN, "x")
    assert reaction.send == ((MANAGER, Failed("h", reason)),)
    assert reaction.record.phase == "withdrawn"


@pytest.mark.parametrize(
    "offer, reason",
    [
        (Offer("h", (1,), 1, "y"), "rows must be x, got y"),
        (Offer("h", (1,), 0, "x"), "chunk size must be >= 1, got 0"),
        (Offer("h", (1, 7), 1, "x"), "sample 7 must not be here already"),
    ],
)
def test_an_offer_that_does_not_fit_is_refused_for_good(offer, reason):
    reaction: Any = receiver.consider(None, offer, GIVER, {7}, "x", 8, room=100)
    assert reaction.send == ((GIVER, Refused("h", reason)),)
    assert reaction.record.phase == "dropped"


def test_a_cancel_that_overtakes_its_begin_wins():
    cancelled = giver.give(None, Cancel("m1-0", "not now"), MANAGER).record
    reaction = giver.begin(cancelled, Begin("m1-0", RECEIVER, SAMPLES, 2), GIVERS_OWN, "x")
    assert reaction == Reaction(send=((MANAGER, Failed("m1-0", "not now")),))


def test_only_the_receiver_of_a_hand_over_is_listened_to():
    assert giver.give(record(), Refused("m1-0", "I am w9"), "w9") == Reaction()
    assert giver.give(record(phase="given"), Staged("m1-0"), "w9") == Reaction()


def test_a_giver_without_a_record_says_so():
    unknown = "the giver has no record of it"
    staged = giver.give(None, Staged("h"), RECEIVER)
    assert staged.send == ((RECEIVER, Withdrawn("h", unknown)),)
    assert giver.give(None, Commit("h"), MANAGER).send == ((MANAGER, Failed("h", unknown)),)


def test_a_manager_without_memory_cancels():
    reaction = task.manage(None, Ready("h"), GIVER)
    assert reaction.send == ((GIVER, Cancel("h", "the manager does not know of it")),)


def test_a_hand_over_goes_on_where_it_stopped():
    half = receiver.ReceiverRecord(
        "h", GIVER, tuple(range(10)), 2, 80, "staging", frozenset({0, 2})
    )
    assert receiver.retry(half) == ((GIVER, Wanted("h", (1, 3, 4))),)


def test_chunks_are_asked_for_as_they_are_stored():
    offer = Offer("h", tuple(range(20)), 2, "x")
    first = receiver.consider(None, offer, GIVER, set(), "x", 8, room=1000)
    assert first.send == ((GIVER, Wanted("h", (0, 1, 2, 3))),)
    chunk = Chunk("h", 1, b"rows", chunk_checksum("h", 1, b"rows"))
    second = receiver.take(first.record, chunk, GIVER)
    assert second.send == ((GIVER, Wanted("h", (5,))),)
    assert receiver.take(second.record, chunk, GIVER) == Reaction()


def test_nothing_is_adopted_before_everything_is_staged():
    # Whatever the giver says: it must not say so, and a message may come from a former disk.
    half = receiver.ReceiverRecord("h", GIVER, SAMPLES, 2, 24, "staging", frozenset({0}))
    dropped = replace(half, phase="dropped", samples=(), chunks=frozenset())
    for record in (half, replace(half, chunks=frozenset({0, 1})), dropped):
        assert receiver.take(record, Given("h"), GIVER) == Reaction()
    staged = replace(half, phase="staged", chunks=frozenset({0, 1}))
    adopted: Any = receiver.take(staged, Given("h"), GIVER)
    assert adopted.record.phase == "adopted"
    assert adopted.send == ((GIVER, Adopted("h")),)


@pytest.mark.parametrize(("hand_over", "number"), [("h", 0), ("other", 1)])
def test_chunk_under_another_number_or_name_than_it_was_sent_with_is_refused(hand_over, number):
    staging = receiver.ReceiverRecord("h", GIVER, SAMPLES, 2, 24, "staging")
    chunk = Chunk("h", 1, b"rows", chunk_checksum(hand_over, number, b"rows"))
    reaction: Any = receiver.take(staging, chunk, GIVER)
    assert reaction.record.phase == "dropped"
    assert isinstance(reaction.send[0][1], Refused)
    right = replace(chunk, checksum=chunk_checksum("h", 1, b"rows"))
    accepted: Any = receiver.take(staging, right, GIVER)
    assert (accepted.record.phase, accepted.record.chunks) == ("staging", {1})


def test_numbers_out_of_range_are_not_read():
    assert giver.give(record(), Wanted("m1-0", (0, 7, -1)), RECEIVER).chunks == (0,)
