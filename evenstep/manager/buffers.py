"""Messages in pieces: binaries of a megabyte are sent from, and read in, the memory they are in.

Copies of that size cost more than they seem to: their memory is taken from the operating system
page by page, and given back. thriftpy2's protocol in plain Python writes a value piece by piece,
and reads what it is given; its compiled one has buffers of its own, and is for everything else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from thriftpy2.protocol.binary import TBinaryProtocol

from evenstep.errors import MalformedMessage

LARGE = 64 * 1024
"""Bytes from which on a binary is not copied; strings are shorter."""

Octets = bytes | memoryview


def encode_pieces(value: Any) -> list[Octets]:
    """Return a struct as bytes, in pieces of which large ones are the binaries in it."""
    pieces = _Pieces()
    value.write(TBinaryProtocol(pieces))
    return pieces.all


def joined(pieces: Sequence[Octets]) -> list[Octets]:
    """Return pieces of which small ones that follow each other are one.

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
        # thriftpy2 wants to decode what is a view.
        raise MalformedMessage(f"a string must have fewer than {LARGE} bytes") from None


class _Pieces:
    """Takes what is written to it, and keeps large things as they are."""

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
    """Reads from memory, and returns large things as views of it."""

    def __init__(self, content: memoryview) -> None:
        self._content, self._at = content, 0

    def read(self, size: int) -> Octets:
        begin, self._at = self._at, self._at + size
        piece = self._content[begin : self._at]
        return piece if size >= LARGE else bytes(piece)
