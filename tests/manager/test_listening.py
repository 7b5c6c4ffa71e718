"""Who is let in when all places for connections are taken: real sockets, on loopback."""

import asyncio
import contextlib
import resource
import socket
import ssl
import time

import pytest

from evenstep.manager import listening
from evenstep.manager.listening import Door
from evenstep.manager.log_format import Seldom
from tests.manager.test_access import make_certificate


class Guest(asyncio.Protocol):
    """Says hello when it receives a byte, and belongs to a worker when that is a W."""

    def __init__(self, guests):
        self._guests = guests
        self.heard = b""
        self.since = time.monotonic()

    def connection_made(self, transport):
        self._transport = transport
        self._guests.add(self)

    def connection_lost(self, error):
        self._guests.discard(self)

    def data_received(self, data):
        self.heard += data
        self.since = time.monotonic()
        self._transport.write(b"!")

    @property
    def is_stranger(self):
        return not self.heard

    @property
    def idle_since(self):
        return None if b"W" in self.heard else self.since

    def abort(self):
        self._transport.abort()


@contextlib.asynccontextmanager
async def door_of(places, context=None):
    door: Door[Guest] = Door(places, context)
    async with door.open("127.0.0.1", 0, lambda: Guest(door.guests)) as sockets:
        yield door, sockets[0].getsockname()
    for guest in list(door.guests):
        guest.abort()
    for writer in WRITERS:
        writer.transport.abort()
    WRITERS.clear()
    await asyncio.sleep(0.05)


WRITERS: list[asyncio.StreamWriter] = []


async def connect(address, context=None):
    reader, writer = await asyncio.open_connection(*address, ssl=context)
    WRITERS.append(writer)
    return reader, writer


async def say(address, text, context=None):
    reader, writer = await connect(address, context)
    writer.write(text)
    assert await asyncio.wait_for(reader.readexactly(1), 10) == b"!"
    return reader, writer


async def is_cut(reader):
    with contextlib.suppress(ConnectionError):
        return await asyncio.wait_for(reader.read(1), 10) == b""
    return True


@pytest.fixture(autouse=True)
def short_stay(monkeypatch):
    monkeypatch.setattr(listening, "STAY", 0.05)


def test_who_has_not_said_hello_makes_room_first_then_who_is_idle_and_workers_stay():
    async def run():
        async with door_of(4) as (door, address):
            workers = [await say(address, b"W") for _ in range(2)]
            idle, _ = await say(address, b"h")
            silent, _ = await connect(address)
            await say(address, b"W")
            assert await is_cut(silent)
            await say(address, b"W")
            assert await is_cut(idle)
            for _, writer in workers:
                writer.write(b"?")
            for reader, _ in workers:
                assert await asyncio.wait_for(reader.readexactly(1), 10) == b"!"
            # Only workers are left: a newcomer waits until one of them goes.
            coming = asyncio.create_task(say(address, b"W"))
            await asyncio.sleep(0.3)
            assert not coming.done() and len(door.guests) == 4
            workers[0][1].close()
            await asyncio.wait_for(coming, 10)

    asyncio.run(run())


def test_flood_of_silent_connections_keeps_no_worker_out():
    async def run():
        async with door_of(8) as (door, address):
            await say(address, b"W")
            for _ in range(60):
                await connect(address)
            await say(address, b"W")
            assert len(door.guests) <= 8

    asyncio.run(run())


def test_handshakes_that_never_end_are_counted_and_make_room(tmp_path):
    certificate, key = make_certificate(tmp_path)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(certificate, key)
    client = ssl.create_default_context(cafile=str(certificate))

    async def run():
        async with door_of(4, server) as (_, address):
            flood = [socket.create_connection(address) for _ in range(20)]
            await say(address, b"W", client)
            for one in flood:
                one.close()

    asyncio.run(run())


def test_silent_connections_are_closed_strangers_sooner():
    async def run():
        async with door_of(4) as (door, address):
            stranger, _ = await connect(address)
            known, _ = await say(address, b"h")
            await say(address, b"W")
            now = asyncio.get_running_loop().time()
            door.cut_silent(now + 1, stranger=10.0, idle=10.0)
            await asyncio.sleep(0.05)
            assert len(door.guests) == 3
            door.cut_silent(now + 8, stranger=5.0, idle=30.0)
            assert await is_cut(stranger)
            assert len(door.guests) == 2
            door.cut_silent(now + 31, stranger=5.0, idle=30.0)
            assert await is_cut(known)
            assert len(door.guests) == 1

    asyncio.run(run())


def test_failures_to_accept_are_logged_once_and_end_with_their_cause(monkeypatch, caplog):
    async def run():
        loop = asyncio.get_running_loop()
        accept, failures = loop.sock_accept, [OSError(24, "Too many open files")] * 5

        async def failing(one):
            if failures:
                raise failures.pop()
            return await accept(one)

        monkeypatch.setattr(loop, "sock_accept", failing, raising=False)
        async with door_of(4) as (_, address):
            await say(address, b"W")
            assert not failures

    monkeypatch.setattr(listening, "_RETRY", 0.001)
    monkeypatch.setattr(listening, "_failed", Seldom(listening._log))
    asyncio.run(run())
    assert [
        record.getMessage() for record in caplog.records if record.name == listening._log.name
    ] == ["cannot accept a connection: [Errno 24] Too many open files"]


def test_places_stay_below_the_limit_of_open_files(monkeypatch):
    limits = {"soft": 128, "hard": 256}
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limits["soft"], limits["hard"]))
    monkeypatch.setattr(resource, "setrlimit", lambda _, both: limits.update(soft=both[0]))
    assert listening.places(20_000) == 64 and limits["soft"] == 256
    limits.update(soft=1_024, hard=1_000_000)
    assert listening.places(20_000) == 20_000 and limits["soft"] == 22_000
    limits.update(soft=resource.RLIM_INFINITY, hard=resource.RLIM_INFINITY)
    assert listening.places(20_000) == 20_000
