"""Encodes, decodes and checks frames and Thrift messages, by the types of a Thrift file.

thriftpy2 trusts the lengths in a message: it reads past the end of its buffer, waits for more, or
counts to two billion while it holds the interpreter's lock. So messages from outside are checked
first, and decoded only if every length fits into the frame.
"""

from __future__ import annotations

import struct
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import thriftpy2
from thriftpy2.protocol import TBinaryProtocol
from thriftpy2.thrift import TApplicationException, TMessageType
from thriftpy2.transport import TMemoryBuffer

from evenstep.errors import MalformedMessage
from evenstep.manager.buffers import Octets, read_view

MAX_REQUEST = 16 * 1024
"""Bytes of the largest frame that a manager reads."""
MAX_REPLY = 64 * 1024 * 1024
"""Bytes of the largest frame that a client reads."""

_DEEPEST = 8
_LENGTH = struct.Struct("!i")
_HEADER = struct.Struct("!II")
_STOP, _STRING, _STRUCT, _MAP, _SET, _LIST = 0, 11, 12, 13, 14, 15
# bool, byte, double, i16, i32, i64
_FIXED = {2: 1, 3: 1, 4: 8, 6: 2, 8: 4, 10: 8}
_VERSION_1 = 0x80010000


@cache
def types() -> Any:
    """Return the module that thriftpy2 generates from `manager.thrift`."""
    return load_types(Path(__file__).with_name("manager.thrift"))


def load_types(file: Path) -> Any:
    """Return the module that thriftpy2 generates from a Thrift file, under a name of its own."""
    return thriftpy2.load(str(file), module_name=f"evenstep_{file.stem}_thrift")


class Message(NamedTuple):
    """A well-formed message; its arguments or result are still encoded."""

    name: str
    kind: int
    """Thrift's message type: call, reply, exception or oneway."""
    sequence: int
    body: Octets


def frame_length(head: bytes | bytearray, largest: int) -> int:
    """Return how many bytes follow the first four of a frame."""
    (length,) = _LENGTH.unpack_from(head)
    if not 0 < length <= largest:
        raise MalformedMessage(f"a frame must have 1 to {largest} bytes, got {length}")
    return int(length)


def parse_message(content: Octets) -> Message:
    """Read a message from outside, and check its structure."""
    message = parse_header(content)
    check_struct(content, len(content) - len(message.body))
    return message


def check_struct(content: Octets, begin: int = 0) -> None:
    """Check that bytes from outside, from `begin` on, are exactly one struct."""
    try:
        end = _walk(content, begin, _STRUCT, _DEEPEST)
    except (struct.error, IndexError):
        raise _cut(content) from None
    if end != len(content):
        raise MalformedMessage(
            f"a message must fill its frame of {len(content)} bytes, got one of {end}"
        )


def parse_header(content: Octets) -> Message:
    """Read the header of a message, without checking the rest."""
    try:
        version, length = _HEADER.unpack_from(content)
        if version & 0xFFFF0000 != _VERSION_1:
            raise MalformedMessage(
                f"a message must begin with the version of Thrift's strict binary protocol, "
                f"got {version:#x}"
            )
        end = _HEADER.size + length
        (sequence,) = _LENGTH.unpack_from(content, end)
        name = str(content[_HEADER.size : end], "utf-8")
    except struct.error:
        raise _cut(content) from None
    except UnicodeDecodeError:
        raise MalformedMessage("the name of a call must be UTF-8") from None
    return Message(name, version & 0xFF, sequence, content[end + _LENGTH.size :])


def encode_body(value: Any) -> bytes:
    """Return the arguments or the result of a call as bytes."""
    buffer = TMemoryBuffer()
    value.write(TBinaryProtocol(buffer))
    return bytes(buffer.getvalue())


def decode_body(into: Any, body: Octets) -> Any:
    """Fill a struct from the bytes of a message that was parsed; a wrong type counts as missing.

    If the body is a view, large binaries in it are views of the same memory.
    """
    try:
        if isinstance(body, memoryview):
            read_view(into, body)
        else:
            into.read(TBinaryProtocol(TMemoryBuffer(body), strict_decode=True))
    except UnicodeDecodeError:
        raise MalformedMessage("a string must be UTF-8") from None
    return into


def encode_frame(name: str, kind: int, sequence: int, body: bytes) -> bytes:
    """Return a whole frame."""
    return encode_head(name, kind, sequence, len(body)) + body


def encode_head(name: str, kind: int, sequence: int, length: int) -> bytes:
    """Return the part of a frame before a body of this length."""
    text = name.encode()
    return b"".join(
        (
            _LENGTH.pack(_HEADER.size + len(text) + _LENGTH.size + length),
            _HEADER.pack(_VERSION_1 | kind, len(text)),
            text,
            _LENGTH.pack(sequence),
        )
    )


def encode_failure(message: Message | None, kind: int, text: str) -> bytes:
    """Return a frame with Thrift's own exception, for a call that has no result."""
    name, sequence = (message.name, message.sequence) if message else ("", 0)
    body = encode_body(TApplicationException(kind, text))
    return encode_frame(name, TMessageType.EXCEPTION, sequence, body)


def _walk(content: Octets, at: int, kind: int, depth: int) -> int:
    """Return where a value ends; each step of the walk consumes at least one byte."""
    if kind in _FIXED:
        end = at + _FIXED[kind]
    elif kind == _STRING:
        end = at + _LENGTH.size + _count(content, at)
    elif depth == 0:
        raise MalformedMessage(f"values must not be nested deeper than {_DEEPEST}")
    elif kind == _STRUCT:
        end = _walk_fields(content, at, depth - 1)
    elif kind == _MAP:
        key, value = content[at], content[at + 1]
        end = _walk_elements(content, at + 2, (key, value), depth - 1)
    elif kind in (_SET, _LIST):
        end = _walk_elements(content, at + 1, (content[at],), depth - 1)
    else:
        raise MalformedMessage(f"a value must have one of Thrift's types, got {kind}")
    if end > len(content):
        raise _cut(content)
    return end


def _walk_fields(content: Octets, at: int, depth: int) -> int:
    while (kind := content[at]) != _STOP:
        # Numbers, the usual fields of reports, need no call; past the end, `content[at]` fails.
        size = _FIXED.get(kind)
        at = at + 3 + size if size else _walk(content, at + 3, kind, depth)
    return at + 1


def _walk_elements(content: Octets, at: int, kinds: tuple[int, ...], depth: int) -> int:
    count = _count(content, at)
    at += _LENGTH.size
    for _ in range(count):
        for kind in kinds:
            at = _walk(content, at, kind, depth)
    return at


def _count(content: Octets, at: int) -> int:
    (count,) = _LENGTH.unpack_from(content, at)
    if not 0 <= count <= len(content):
        raise MalformedMessage(
            f"a length must fit into its frame of {len(content)} bytes, got {count}"
        )
    return int(count)


def _cut(content: Octets) -> MalformedMessage:
    return MalformedMessage(f"a message must not end within a value, got {len(content)} bytes")
