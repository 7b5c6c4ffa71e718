"""A client's connection to the manager or another service: one call at a time, TCP or TLS."""

from __future__ import annotations

import contextlib
import socket
import ssl
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from thriftpy2.thrift import TApplicationException, TMessageType

from evenstep import __version__
from evenstep.errors import MalformedMessage, ManagerUnreachable, Refused
from evenstep.manager import wire
from evenstep.manager.access import parse_address
from evenstep.manager.buffers import Octets, joined

SOFTWARE = f"evenstep {__version__}"
VERSION = 1
"""The newest version of `manager.thrift` that this manager and this client know."""


@dataclass(frozen=True)
class Where:
    """The address of a manager, with the token and TLS context to use there."""

    address: str
    token: str | None = None
    tls: ssl.SSLContext | None = None

    def __repr__(self) -> str:
        return f"Where({self.address!r})"


@dataclass(frozen=True)
class Callee:
    """A kind of service, with a `hello` call and calls that throw `Refused`."""

    name: str
    """Its name in error messages."""
    service: str
    """Its name in the Thrift file."""
    newest: int
    """The newest version of its Thrift file that this program knows."""
    types: Callable[[], Any]
    read: Callable[[bytes], wire.Message] = wire.parse_header
    """Parses a reply; `parse_message` also checks its structure, if the service is not trusted."""
    command: str = ""
    """The command that starts one, if there is one."""
    oldest: int = 1
    """The oldest version that this program still knows."""


MANAGER = Callee("manager", "BatchSizeManager", VERSION, wire.types, command="evenstep manager")


def describe_speaker(software: str | None, oldest: object, newest: object) -> str:
    """Return the name of a program and the versions that it knows, for an error message.

    >>> describe_speaker("evenstep 0.1.0", 1, 2)
    'evenstep 0.1.0, which knows versions 1 to 2'
    """
    known = f"version {oldest}" if oldest == newest else f"versions {oldest} to {newest}"
    # The text may come from anybody.
    name = "".join(filter(str.isprintable, software or ""))[:60] or "an older program"
    return f"{name}, which knows {known}"


class ServiceConnection:
    """An open connection, after its `hello` call, by which both sides agreed on `version`."""

    def __init__(self, where: Where, timeout: float, callee: Callee = MANAGER) -> None:
        self._where = where
        self._callee = callee
        self._sequence = 0
        self._socket = self._connect(timeout)
        try:
            self.version = self._greet(timeout)
        except BaseException:
            self.close()
            raise

    def call(self, name: str, timeout: float, **arguments: Any) -> Any:
        """Make a call and return its result.

        Raises Refused if the service refuses the call, and ManagerUnreachable if no reply or an
        invalid one came back; the connection cannot be used after that.
        """
        service = getattr(self._callee.types(), self._callee.service)
        body = wire.encode_body(getattr(service, f"{name}_args")(**arguments))
        return self.call_with(name, timeout, [body])

    def call_with(self, name: str, timeout: float, body: Sequence[Octets]) -> Any:
        """Make a call whose arguments are already encoded, in pieces."""
        service = getattr(self._callee.types(), self._callee.service)
        self._sequence = (self._sequence + 1) % 2**31
        length = sum(map(len, body))
        head = wire.encode_head(name, TMessageType.CALL, self._sequence, length)
        try:
            reply = self._callee.read(self._exchange([head, *body], time.monotonic() + timeout))
            if reply.kind == TMessageType.EXCEPTION:
                failure = wire.decode_body(TApplicationException(), reply.body)
                raise self._unreachable(str(failure.message))
            if reply.sequence != self._sequence:
                raise self._unreachable("an answer came that was not asked for")
            result = wire.decode_body(getattr(service, f"{name}_result")(), reply.body)
        except (OSError, MalformedMessage) as error:
            raise self._unreachable(str(error) or type(error).__name__) from error
        if result.refused is not None:
            names = self._callee.types().Problem._VALUES_TO_NAMES
            raise Refused(names.get(result.refused.problem, "INVALID"), str(result.refused.message))
        return getattr(result, "success", None)

    def close(self) -> None:
        # Closing alone does not wake a thread that reads.
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _greet(self, timeout: float) -> int:
        """Say hello, and return the version of this connection."""
        oldest, newest = self._callee.oldest, self._callee.newest
        this = f"this client is {describe_speaker(SOFTWARE, oldest, newest)}"
        token, software = self._where.token or "", SOFTWARE
        arguments = {"version": oldest, "newest": newest, "token": token, "software": software}
        try:
            greeting = self.call("hello", timeout, **arguments)
        except Refused as error:
            if error.problem == "VERSION" and SOFTWARE not in str(error):
                # A service from before ranges names itself alone.
                raise Refused("VERSION", f"{error}; {this}") from None
            raise
        if greeting is None:
            # A service from before ranges, which knows just the version that it accepted.
            return oldest
        if greeting.version is None or not oldest <= greeting.version <= newest:
            got = describe_speaker(greeting.software, greeting.version, greeting.version)
            raise Refused("VERSION", f"{this}, got a {self._callee.name} that is {got}")
        return int(greeting.version)

    def _connect(self, timeout: float) -> socket.socket:
        address = parse_address(self._where.address)
        try:
            opened = socket.create_connection(address, timeout)
        except ConnectionRefusedError as error:
            command = self._callee.command
            hint = f"; start one with `{command}`" if command else ""
            raise self._unreachable(f"Connection refused{hint}") from error
        except OSError as error:
            raise self._unreachable(error.strerror or str(error)) from error
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if self._where.tls is None:
            return opened
        try:
            return self._where.tls.wrap_socket(opened, server_hostname=address[0])
        except OSError as error:
            opened.close()
            raise self._unreachable(str(error)) from error

    def _exchange(self, frame: Sequence[Octets], deadline: float) -> bytes:
        for piece in joined(frame):
            self._socket.settimeout(_left(deadline))
            self._socket.sendall(piece)
        return self.receive(deadline)

    def receive(self, deadline: float) -> bytes:
        """Return the content of the next frame; most arrive in one piece."""
        came = self._socket.recv(65536)
        if came.startswith(b"HTTP/"):
            raise MalformedMessage("this port speaks HTTP; the address of --listen is needed")
        if len(came) >= 4 and len(came) == 4 + wire.frame_length(came, wire.MAX_REPLY):
            return came[4:]
        buffer = bytearray(came)
        while len(buffer) < 4 or len(buffer) < 4 + wire.frame_length(buffer, wire.MAX_REPLY):
            if not came:
                raise ConnectionError(self._closed())
            self._socket.settimeout(_left(deadline))
            came = self._socket.recv(65536)
            buffer += came
        if len(buffer) > 4 + wire.frame_length(buffer, wire.MAX_REPLY):
            raise MalformedMessage("a frame must be followed by nothing, got more")
        return bytes(buffer[4:])

    def _closed(self) -> str:
        is_greeting = self._sequence == 1
        hint = ", as one with TLS does where the client has none" if is_greeting else ""
        return f"the connection was closed{hint if self._where.tls is None else ''}"

    def _unreachable(self, why: str) -> ManagerUnreachable:
        return ManagerUnreachable(f"the {self._callee.name} at {self._where.address}: {why}")


def _left(deadline: float) -> float:
    return max(1e-3, deadline - time.monotonic())
