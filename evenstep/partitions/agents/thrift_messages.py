"""Messages of hand-overs as structs of `agent.thrift`, and back; sealed, so that damage shows."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from evenstep.errors import InvalidSetting, MalformedMessage, Refused
from evenstep.manager import wire
from evenstep.manager.buffers import Octets, encode_pieces
from evenstep.manager.connection import Callee
from evenstep.manager.wire import load_types
from evenstep.partitions.handover import protocol
from evenstep.partitions.handover.protocol import Envelope, Message

VERSION = 1
"""The version of `agent.thrift` that this agent and this manager speak."""
MAX_FRAME = 20 * 2**20
"""Bytes of the largest frame that an agent reads after a greeting."""
MAX_CHUNK = 16 * 2**20
"""Bytes of the rows of the largest chunk."""
MAX_SAMPLES = 100_000
"""Samples of a hand-over, and of an answer that lists them."""

KINDS: dict[str, type[Message]] = {
    "beginning": protocol.Begin,
    "commit": protocol.Commit,
    "cancel": protocol.Cancel,
    "ready": protocol.Ready,
    "done": protocol.Done,
    "failed": protocol.Failed,
    "offer": protocol.Offer,
    "chunk": protocol.Chunk,
    "given": protocol.Given,
    "withdrawn": protocol.Withdrawn,
    "wanted": protocol.Wanted,
    "staged": protocol.Staged,
    "refused": protocol.Refused,
    "adopted": protocol.Adopted,
}
"""The messages, by the names of their fields in an Envelope of `agent.thrift`."""

_FIELDS = {kind: name for name, kind in KINDS.items()}

_BEFORE = struct.Struct("!bhbhi")
"""The beginnings of a field that is a struct, and of a binary in it."""
_AFTER = struct.Struct("!bhqxx")
"""A checksum, and the ends of both structs."""


@cache
def types() -> Any:
    """Return the module that thriftpy2 makes of the file."""
    return load_types(Path(__file__).with_name("agent.thrift"))


AGENT = Callee(
    "agent", "PartitionAgent", VERSION, types, wire.parse_message, "evenstep partition serve"
)


def pack_samples(samples: Sequence[int] | Any) -> bytes:
    """Return samples as bytes.

    >>> unpack_samples(pack_samples((3, 70_000)))
    (3, 70000)
    """
    return np.asarray(samples, dtype="<i8").tobytes()


def unpack_samples(content: bytes) -> tuple[int, ...]:
    """Return the samples that bytes stand for."""
    if len(content) % 8:
        raise InvalidSetting(f"samples must have 8 bytes each, got {len(content)} bytes")
    return tuple(np.frombuffer(content, dtype="<i8").tolist())


def seal(value: Any) -> Any:
    """Return a struct as bytes with their checksum."""
    content = wire.encode_body(value)
    return types().Sealed(content=content, crc=zlib.crc32(content))


def seal_pieces(value: Any) -> list[Octets]:
    """Return the arguments of a call that takes one sealed struct, in pieces.

    >>> envelope = to_struct(Envelope("w0", "w1", protocol.Given("m1-0")))
    >>> arguments = types().PartitionAgent.deliver_args(envelope=seal(envelope))
    >>> b"".join(seal_pieces(envelope)) == wire.encode_body(arguments)
    True
    """
    content = encode_pieces(value)
    crc = 0
    for piece in content:
        crc = zlib.crc32(piece, crc)
    return [_BEFORE.pack(12, 1, 11, 1, sum(map(len, content))), *content, _AFTER.pack(10, 2, crc)]


def unseal(sealed: Any, into: Any) -> Any:
    """Fill a struct from sealed bytes; Refused where they do not fit their checksum."""
    content = None if sealed is None else sealed.content
    if not isinstance(content, Octets) or zlib.crc32(content) != sealed.crc:
        size = len(content) if isinstance(content, Octets) else 0
        raise Refused("DAMAGED", f"{size} bytes do not fit their checksum")
    try:
        wire.check_struct(content)
        return wire.decode_body(into, content)
    except MalformedMessage as error:
        raise InvalidSetting(f"what is sealed is no {type(into).__name__}: {error}") from error


def to_struct(envelope: Envelope) -> Any:
    """Return an envelope as its struct."""
    message = envelope.message
    name = _FIELDS[type(message)]
    values = {field.name: getattr(message, field.name) for field in fields(message)}
    if "samples" in values:
        values["samples"] = pack_samples(values["samples"])
    if "numbers" in values:
        values["numbers"] = list(values["numbers"])
    inner = _struct_of(name)(**values)
    return types().Envelope(sender=envelope.sender, to=envelope.to, **{name: inner})


def from_struct(value: Any) -> Envelope:
    """Return the envelope that a struct stands for; InvalidSetting where it is none."""
    found = [name for name in KINDS if getattr(value, name) is not None]
    if len(found) != 1 or not value.sender or not value.to:
        raise InvalidSetting(
            f"an envelope must have a sender, a receiver and one message, "
            f"got {value.sender!r}, {value.to!r} and {', '.join(found) or 'none'}"
        )
    (name,) = found
    inner = getattr(value, name)
    values = {field.name: getattr(inner, field.name) for field in fields(KINDS[name])}
    missing = [field for field, value in values.items() if value is None]
    if missing:
        raise InvalidSetting(f"{name} must have all its fields, got no {', '.join(missing)}")
    if "samples" in values:
        values["samples"] = unpack_samples(values["samples"])
    if "numbers" in values:
        values["numbers"] = tuple(values["numbers"])
    return Envelope(value.sender, value.to, KINDS[name](**values))


def _struct_of(name: str) -> Any:
    """Return the struct of a field of an envelope."""
    return next(spec[2] for spec in types().Envelope.thrift_spec.values() if spec[1] == name)
