"""Frames and messages: which bytes are accepted."""

import struct

import pytest

from evenstep.errors import MalformedMessage
from evenstep.manager import wire
from evenstep.manager.wire import types
from tests.manager.test_fuzz import valid_messages


@pytest.mark.parametrize("content", valid_messages())
def test_message_is_read_as_it_was_written(content):
    message = wire.parse_message(content)
    arguments = getattr(types().BatchSizeManager, f"{message.name}_args")()
    wire.decode_body(arguments, message.body)
    body = wire.encode_body(arguments)
    assert wire.encode_frame(message.name, message.kind, message.sequence, body)[4:] == content


@pytest.mark.parametrize("content", valid_messages())
def test_message_that_was_cut_or_is_longer_than_it_says_is_refused(content):
    for end in range(len(content)):
        with pytest.raises(MalformedMessage):
            wire.parse_message(content[:end])
    with pytest.raises(MalformedMessage, match="must fill its frame"):
        wire.parse_message(content + b"\0")


def message_of(body):
    return struct.pack("!II", 0x80010001, 5) + b"hello" + struct.pack("!i", 0) + body


@pytest.mark.parametrize(
    ("body", "rule"),
    [
        (b"\x0b\0\1\xff\xff\xff\xff", "a length must fit"),
        (b"\x0b\0\1\x7f\xff\xff\xff", "a length must fit"),
        (b"\x0f\0\1\x07\x00\x00\x00\x05\0", "one of Thrift's types, got 7"),
        (b"\x0f\0\1\x08\x7f\xff\xff\xff\0", "a length must fit"),
        (b"\x0d\0\1\x08\x08\x00\x00\x00\x09\0", "must not end within"),
        (b"\x0c\0\1" * 20, "nested deeper than 8"),
        (b"\x63\0\1\0", "one of Thrift's types, got 99"),
        (b"\x08\0\1\0\0", "must not end within"),
    ],
)
def test_value_that_does_not_fit_is_refused(body, rule):
    with pytest.raises(MalformedMessage, match=rule):
        wire.parse_message(message_of(body))


def test_unknown_fields_are_passed_over():
    body = b"\x0d\0\x63\x0b\x0f\0\0\0\1" + b"\0\0\0\1x" + b"\x08\0\0\0\1\0\0\0\7" + b"\0"
    message = wire.parse_message(message_of(body))
    arguments = wire.decode_body(types().BatchSizeManager.hello_args(), message.body)
    assert arguments.version is None


def test_text_that_is_no_utf_8_is_refused():
    message = wire.parse_message(message_of(b"\x0b\0\2\0\0\0\1\xff\0"))
    with pytest.raises(MalformedMessage, match="UTF-8"):
        wire.decode_body(types().BatchSizeManager.hello_args(), message.body)


@pytest.mark.parametrize("length", [-1, 0, wire.MAX_REQUEST + 1, 2**31 - 1])
def test_frame_with_a_length_out_of_bounds_is_refused(length):
    with pytest.raises(MalformedMessage, match="a frame must have 1 to"):
        wire.frame_length(struct.pack("!i", length), wire.MAX_REQUEST)
