"""Messages on the wire: they come back as they were, and damage shows."""

import zlib

import pytest

from evenstep.errors import InvalidSetting, Refused
from evenstep.partitions.agents.thrift_messages import (
    KINDS,
    from_struct,
    seal,
    to_struct,
    types,
    unseal,
)
from evenstep.partitions.handover import protocol as m

MESSAGES: list[m.Message] = [
    m.Begin("h", "w1", (3, 2**40), 2),
    m.Commit("h"),
    m.Cancel("h", "why"),
    m.Ready("h"),
    m.Done("h"),
    m.Failed("h", "why"),
    m.Offer("h", (1, 2), 2, "layout"),
    m.Chunk("h", 7, b"\xff\x00", "sum"),
    m.Given("h"),
    m.Withdrawn("h", "why"),
    m.Wanted("h", (1, 2)),
    m.Staged("h"),
    m.Refused("h", "why"),
    m.Adopted("h"),
]


def test_every_message_comes_back_as_it_was():
    assert {type(message) for message in MESSAGES} == set(KINDS.values())
    for message in MESSAGES:
        envelope = m.Envelope("w0", "w1", message)
        assert from_struct(unseal(seal(to_struct(envelope)), types().Envelope())) == envelope


def test_every_flipped_bit_shows():
    envelope = m.Envelope("w0", "w1", m.Chunk("h", 7, b"rows", "sum"))
    sealed = seal(to_struct(envelope))
    for position in range(len(sealed.content)):
        for bit in range(8):
            damaged = bytearray(sealed.content)
            damaged[position] ^= 1 << bit
            wrong = types().Sealed(content=bytes(damaged), crc=sealed.crc)
            with pytest.raises(Refused, match="checksum") as refused:
                unseal(wrong, types().Envelope())
            assert refused.value.problem == "DAMAGED"


@pytest.mark.parametrize(
    "struct, rule",
    [
        (lambda t: t.Envelope(sender="w0", to="w1"), "one message"),
        (lambda t: t.Envelope(to="w1", commit=t.Commit(hand_over="h")), "a sender"),
        (lambda t: t.Envelope(sender="a", to="b", commit=t.Commit()), "got no hand_over"),
        (
            lambda t: t.Envelope(
                sender="a",
                to="b",
                offer=t.Offer(hand_over="h", samples=b"123", chunk_size=1, layout="x"),
            ),
            "8 bytes each, got 3",
        ),
        (
            lambda t: t.Envelope(
                sender="a", to="b", given=t.Given(hand_over="h"), staged=t.Staged(hand_over="h")
            ),
            "one message",
        ),
    ],
)
def test_what_is_no_message_is_refused(struct, rule):
    with pytest.raises(InvalidSetting, match=rule):
        from_struct(struct(types()))


def test_sealed_bytes_are_walked_through_before_they_are_decoded():
    # A list of two billion elements that take no bytes.
    content = b"\x0f\x00\x63\x0c\x7f\xff\xff\xff"
    bomb = seal(types().Peers())
    bomb.content, bomb.crc = content, zlib.crc32(content)
    with pytest.raises(InvalidSetting, match="is no Envelope"):
        unseal(bomb, types().Envelope())
