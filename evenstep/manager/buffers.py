"""Messages in pieces: large binaries are sent and read without copying them.

A copy of a megabyte is slow, because its memory is allocated from the operating system page by
page and freed again. thriftpy2's protocol in plain Python writes a value in pieces and reads from
any buffer; its compiled protocol has buffers of its own and serves all other messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from thriftpy2.protocol.binary import TBinaryProtocol

from evenstep.errors import MalformedMessage

LARGE = 64 * 1024
"""Size in bytes from which a binary is not copied; strings must be shorter."""

Octets = bytes | memoryview


def encode_pieces(value: Any) -> list[Octets]:
    """Return a struct as bytes in pieces; each large binary is a piece of its own."""
    pieces = _Pieces()
    value.write(TBinaryProtocol(pieces))
    return pieces.all


def joined(pieces: Sequence[Octets]) -> list[Octets]:
    """Join small pieces that follow each other, and keep large ones.

    >>> joined([b"a", b"b", memoryview(bytes(LARGE)), b"c"])[::2]
    [b'ab', b'c']
    """
    found = _Pieces()
    for piece in pieces:
        found.write(piece)
    return found.all


def read_view(into: Any, content: memoryview) -> None:
    """Fill a struct from memory; large binaries in it are views of that memory."""
    try:
        into.read(TBinaryProtocol(_View(content), strict_decode=True))
    except AttributeError:
        # thriftpy2 decodes strings, which a view cannot do.
        raise MalformedMessage(f"a string must have fewer than {LARGE} bytes") from None


class _Pieces:
    """A transport to write to that keeps large pieces without copying them."""

    def __init__(self) -> None:
        self._done: list[Octets] = []
        self._small: list[Octets] = []

    def write(self, octets: Octets) -> None:
        if len(octets) < LARGE:
            self._small.append(octets)
        else:
            self._done = [*self.all, octets]
            self._small = []

    @property
    def all(self) -> list[Octets]:
        return [*self._done, b"".join(self._small)] if self._small else self._done


class _View:
    """A transport to read from that returns large pieces as views of its memory."""

    def __init__(self, content: memoryview) -> None:
        self._content, self._at = content, 0

    def read(self, size: int) -> Octets:
        begin, self._at = self._at, self._at + size
        piece = self._content[begin : self._at]
        return piece if size >= LARGE else bytes(piece)
