"""The attacks on a manager, in a process of their own: `python -m tests.hostile.attacker`.

It runs niced, so that it takes the manager's attention and not its processor. It prints `ready`
when the attack is under way, and what came of it at the end.
"""

import contextlib
import json
import os
import random
import resource
import selectors
import socket
import ssl
import struct
import sys
import time
import urllib.parse
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from evenstep.manager.access import client_context, job_token, parse_address
from tests.hostile import calls
from tests.hostile.job import JOB
from tests.manager.test_fuzz import garbage, valid_messages

SEED = 20
PATIENCE = 10.0
CLIENT_HELLO = bytes.fromhex("1603010200010001fc0303")
"""The first bytes of a TLS handshake."""
ABORT = struct.pack("ii", 1, 0)


@dataclass(frozen=True)
class Victim:
    """A manager, and what the attacker knows of it."""

    address: str
    url: str
    seconds: float
    """How long the attack takes, at least."""
    token: str = ""
    ca: str = ""
    number: int = 0
    """How much of it, where an attack can be counted."""

    @property
    def other_token(self) -> str:
        """The token of another job, if the manager has one."""
        return job_token(self.token, "hostile-0") if self.token else ""

    def dial(self, http: bool = False) -> socket.socket:
        """Open a connection, without TLS."""
        if http:
            parts = urllib.parse.urlsplit(self.url)
            assert parts.hostname is not None and parts.port is not None
            return socket.create_connection((parts.hostname, parts.port), PATIENCE)
        return socket.create_connection(parse_address(self.address), PATIENCE)

    def connect(self, http: bool = False) -> socket.socket:
        """Open a connection, with TLS if the manager has it."""
        line = self.dial(http)
        if not self.ca:
            return line
        try:
            return client_context(self.ca).wrap_socket(line, server_hostname="127.0.0.1")
        except BaseException:
            line.close()
            raise

    def greet(self, token: str | None = None) -> socket.socket:
        """Open a connection and say hello, with the right token by default."""
        line = self.connect()
        line.sendall(calls.hello(self.token if token is None else token))
        read_frame(line)
        return line

    def until_over(self) -> Iterator[float]:
        """Yield the seconds that are left, while there are any."""
        end = time.monotonic() + self.seconds
        while (left := end - time.monotonic()) > 0:
            yield left


def read_frame(line: socket.socket) -> bytes:
    """Return the next frame; raises ConnectionError at the end of the connection."""
    data = b""
    while len(data) < 4 or len(data) < 4 + struct.unpack_from("!i", data)[0]:
        if not (came := line.recv(65536)):
            raise ConnectionError("closed")
        data += came
    return data


def ready() -> None:
    print("ready", flush=True)


class Asker:
    """Makes hostile calls on one connection, and opens another one when that is closed."""

    def __init__(self, victim: Victim, token: str, seed: int) -> None:
        self._victim = victim
        self._token = token
        self._calls = calls.hostile_calls(seed)
        self._line: socket.socket | None = None

    def ask(self) -> socket.socket | None:
        """Send the next call, and return the connection of its reply, if there is one."""
        try:
            if self._line is None:
                self._line = self._victim.greet(self._token)
            self._line.sendall(next(self._calls))
        except OSError:
            self._close()
        return self._line

    def read(self) -> str:
        """Read the reply, and return what became of the call."""
        assert self._line is not None
        try:
            read_frame(self._line)
            return "answered"
        except OSError as error:
            self._close()
            return "late" if isinstance(error, TimeoutError) else "closed"

    def _close(self) -> None:
        if self._line is not None:
            self._line.close()
            self._line = None


def messages(victim: Victim) -> Counter[str]:
    """Make hostile calls on connections with and without the token, and send broken frames."""
    rng = random.Random(SEED)
    valid = valid_messages()
    selector = selectors.DefaultSelector()
    tokens = (victim.token, "wrong", victim.token, victim.other_token)
    free = [Asker(victim, token, seed) for seed, token in enumerate(4 * tokens)]
    seen: Counter[str] = Counter()
    ready()
    began = time.monotonic()
    least, most = began + victim.seconds, began + 10 * victim.seconds
    while (now := time.monotonic()) < least or (seen["answered"] < victim.number and now < most):
        asking = {line: asker for asker in free if (line := asker.ask()) is not None}
        for line, asker in asking.items():
            selector.register(line, selectors.EVENT_READ, asker)
        free = [asker for asker in free if asker not in asking.values()]
        for key, _ in selector.select(0.1):
            selector.unregister(key.fileobj)
            seen[key.data.read()] += 1
            free.append(key.data)
        if seen["answered"] > 100 * seen["broken"]:
            with contextlib.suppress(OSError), victim.connect() as line:
                line.sendall(calls.hello(victim.token if rng.random() < 0.5 else "wrong"))
                line.sendall(garbage(rng, valid))
                seen["broken"] += 1
    return seen


class Held:
    """Connections that are opened again, at most a second later, when the manager closes them."""

    def __init__(
        self,
        number: int,
        dial: Callable[[], socket.socket],
        text: bytes = b"",
        at_once: int = 0,
        reads: bool = True,
    ) -> None:
        self._number = number
        self._dial = dial
        self._reads = reads
        self._text, self._at_once = text, at_once
        """What is written again and again, and how many bytes of it at a time."""
        self._written: dict[socket.socket, int] = {}
        self._selector = selectors.DefaultSelector()
        self._next = 0.0
        self.seen: Counter[str] = Counter()

    def refresh(self) -> None:
        """Notice which were closed, dial again, and write."""
        for key, _ in self._selector.select(0) if self._reads else ():
            assert isinstance(key.fileobj, socket.socket)
            if _is_closed(key.fileobj):
                self._drop(key.fileobj)
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + 1.0
            self._open()
        if self._text:
            for line in list(self._written):
                self._write(line)

    def close(self) -> None:
        """Close all of them at once, half of them without a farewell."""
        for i, line in enumerate(self._written):
            if i % 2:
                line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, ABORT)
            line.close()
        self._selector.close()

    def _open(self) -> None:
        for _ in range(self._number - len(self._written)):
            try:
                line = self._dial()
            except OSError:
                self.seen["unreachable"] += 1
                break
            line.setblocking(False)
            self._written[line] = 0
            self._selector.register(line, selectors.EVENT_READ)
            self.seen["opened"] += 1

    def _write(self, line: socket.socket) -> None:
        at = self._written[line]
        try:
            sent = line.send(self._text[at : at + self._at_once])
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return
        except OSError:
            self._drop(line)
        else:
            self._written[line] = (at + sent) % len(self._text)

    def _drop(self, line: socket.socket) -> None:
        del self._written[line]
        self._selector.unregister(line)
        line.close()
        self.seen["cut"] += 1


def _is_closed(line: socket.socket) -> bool:
    try:
        return not line.recv(65536)
    except (BlockingIOError, ssl.SSLWantReadError):
        return False
    except OSError:
        return True


def hold(victim: Victim, *refreshes: Callable[[], None]) -> None:
    """Keep an attack up for its time."""
    for refresh in refreshes:
        refresh()
    ready()
    for left in victim.until_over():
        for refresh in refreshes:
            refresh()
        time.sleep(min(left, 0.05))


def slow(victim: Victim) -> Counter[str]:
    """Readers that ask and do not read, writers of single bytes, and handshakes without end."""
    status = calls.encoded("status", job=JOB)

    def half_shaken() -> socket.socket:
        line = victim.dial()
        line.sendall(CLIENT_HELLO)
        return line

    groups = [
        Held(40, victim.greet, status, len(status), reads=False),
        Held(40, victim.connect, status, 1),
        Held(40, victim.dial),
        Held(40, half_shaken),
    ]
    hold(victim, *(group.refresh for group in groups))
    return _ended(*groups)


def pipelined(victim: Victim) -> Counter[str]:
    """Calls that follow each other without waiting for a reply, and of which none is read."""
    text = 50 * calls.encoded("status", job=JOB)
    readers = Held(40, victim.greet, text, len(text), reads=False)
    hold(victim, readers.refresh)
    return _ended(readers)


def _ended(*groups: Held) -> Counter[str]:
    for group in groups:
        group.close()
    return sum((group.seen for group in groups), Counter())


def descriptors(victim: Victim) -> Counter[str]:
    """More idle connections than the manager may have open files."""
    idle = Held(victim.number, victim.dial)
    hold(victim, idle.refresh)
    return _ended(idle)


def http(victim: Victim) -> Counter[str]:
    """Requests without end, handshakes without end, and more followers than are allowed."""

    def unfinished() -> socket.socket:
        line = victim.connect(http=True)
        line.sendall(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n")
        return line

    head = "GET /events HTTP/1.1\r\nHost: localhost\r\n"
    if victim.token:
        head += f"Authorization: Bearer {victim.token}\r\n"
    followers = Followers(victim, f"{head}\r\n".encode())
    groups = [Held(200, unfinished), Held(100, lambda: victim.dial(http=True))]
    hold(victim, followers.refresh, *(group.refresh for group in groups))
    followers.close()
    return _ended(*groups) + Counter(followers=followers.most)


class Followers:
    """Followers of the events that all come at once, again and again."""

    AT_ONCE = 110

    def __init__(self, victim: Victim, request: bytes) -> None:
        self._victim = victim
        self._request = request
        self._lines: list[socket.socket] = []
        self._admitted: set[socket.socket] = set()
        self._next = 0.0
        self.most = 0
        """The largest number that was admitted at a time."""

    def refresh(self) -> None:
        now = time.monotonic()
        if now >= self._next:
            self._next = now + 2.0
            self.close()
            self._lines = []
            for _ in range(self.AT_ONCE):
                with contextlib.suppress(OSError):
                    line = self._victim.connect(http=True)
                    line.setblocking(False)
                    self._lines.append(line)
            for line in self._lines:
                with contextlib.suppress(OSError):
                    line.send(self._request)
            self._admitted = set()
        for line in self._lines:
            with contextlib.suppress(OSError):
                if line.recv(65536).startswith(b"HTTP/1.1 200"):
                    self._admitted.add(line)
        self.most = max(self.most, len(self._admitted))

    def close(self) -> None:
        for line in self._lines:
            line.close()


def stranger(victim: Victim) -> Counter[str]:
    """Join the valid job with the longest lease, and go away without leaving."""
    seen: Counter[str] = Counter()
    ready()
    for left in victim.until_over():
        token = victim.other_token if seen["strangers"] % 2 else victim.token
        with contextlib.suppress(OSError), victim.greet(token) as line:
            line.sendall(calls.join(JOB, f"stranger-{seen['strangers']}", 86_400.0))
            read_frame(line)
            seen["strangers"] += 1
        time.sleep(min(left, 1.0))
    return seen


ATTACKS = (messages, slow, pipelined, descriptors, http, stranger)


def main() -> None:
    os.nice(19)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    name, victim = sys.argv[1], Victim(**json.load(sys.stdin))
    (attack,) = [one for one in ATTACKS if one.__name__ == name]
    print(json.dumps(attack(victim)), flush=True)


if __name__ == "__main__":
    main()
