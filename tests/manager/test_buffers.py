"""Messages in pieces: the same bytes, without copies of large binaries."""

import asyncio
from collections import Counter

import numpy as np
import pytest

from evenstep.errors import MalformedMessage
from evenstep.manager import wire
from evenstep.manager.buffers import LARGE, encode_pieces
from evenstep.manager.endpoint import Bounds, Connection
from evenstep.partitions.agents.thrift_messages import (
    from_struct,
    seal,
    seal_pieces,
    to_struct,
    types,
    unseal,
)
from evenstep.partitions.handover.protocol import Chunk, Envelope
from tests.manager.test_endpoint import Unread

PAYLOAD = np.random.default_rng(0).integers(0, 256, 3 * LARGE, dtype=np.uint8)
ENVELOPE = Envelope("w0", "w1", Chunk("m1-0", 7, PAYLOAD.data, "sum"))


def same_memory(view):
    return np.shares_memory(np.frombuffer(view, np.uint8), PAYLOAD)


def test_pieces_are_the_bytes_of_a_message_without_copies_of_what_is_large():
    struct = to_struct(ENVELOPE)
    pieces = encode_pieces(struct)
    assert b"".join(pieces) == wire.encode_body(struct)
    assert [same_memory(piece) for piece in pieces] == [False, True, False]
    arguments = types().PartitionAgent.deliver_args(envelope=seal(struct))
    assert b"".join(seal_pieces(struct)) == wire.encode_body(arguments)


def test_message_in_a_view_is_read_without_copies_of_what_is_large():
    frame = memoryview(bytearray(b"".join(seal_pieces(to_struct(ENVELOPE)))))
    arguments = wire.decode_body(types().PartitionAgent.deliver_args(), frame)
    read = from_struct(unseal(arguments.envelope, types().Envelope()))
    assert read == ENVELOPE
    assert isinstance(read.message, Chunk)
    payload = np.frombuffer(read.message.payload, np.uint8)
    assert np.shares_memory(payload, np.frombuffer(frame, np.uint8))


def test_string_that_is_as_large_as_a_binary_is_refused():
    struct = types().Cancel(hand_over="m1-0", reason="x" * LARGE)
    with pytest.raises(MalformedMessage, match=rf"string must .*fewer .*\b{LARGE} bytes$"):
        wire.decode_body(types().Cancel(), memoryview(wire.encode_body(struct)))


class Heard:
    """Keeps the received frames."""

    def __init__(self):
        self.frames = []
        self.refused: Counter[str] = Counter()

    def handle(self, peer, content):
        self.frames.append(content)

    def lost(self, peer):
        pass


@pytest.mark.parametrize("at_once", [1000, 4096])
def test_large_frames_are_read_into_their_place_among_small_ones(at_once):
    contents = [b"small", bytes(PAYLOAD), b"", b"after it", bytes(PAYLOAD[::-1]), b"end"]
    contents = [content + b"." for content in contents]
    frames = [len(content).to_bytes(4, "big") + content for content in contents]
    heard = Heard()

    async def talk():
        memory = memoryview(bytearray(4096))
        bounds = Bounds(lambda peer: 2**20)
        connection = Connection(heard, set(), memory, bounds)
        connection.connection_made(Unread())
        for sent in frames:
            while sent:
                buffer = connection.get_buffer(-1)[:at_once]
                piece, sent = sent[: len(buffer)], sent[len(buffer) :]
                buffer[: len(piece)] = piece
                connection.buffer_updated(len(piece))

    asyncio.run(talk())
    assert [bytes(frame) for frame in heard.frames] == contents
    assert [isinstance(frame, memoryview) for frame in heard.frames] == [
        len(content) > 4096 for content in contents
    ]
