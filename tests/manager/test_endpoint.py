"""Connections of the manager on a transport without a reader, and its periodic work."""

import asyncio
import re

from evenstep.manager import endpoint, wire
from evenstep.manager.connection import VERSION
from evenstep.manager.endpoint import Connection
from evenstep.manager.job_settings import JobSettings
from evenstep.manager.jobs import Jobs
from evenstep.manager.service import Service
from evenstep.manager.wire import types


class Unread(asyncio.Transport):
    """A transport that accepts everything, and whose other end reads nothing."""

    def __init__(self):
        self.sent = []
        self.aborted = False

    def write(self, frame):
        self.sent.append(frame)

    def abort(self):
        self.aborted = True

    def get_write_buffer_size(self):
        return sum(map(len, self.sent))

    def is_closing(self):
        return self.aborted

    def resume_reading(self):
        pass


def call(name, **arguments):
    body = wire.encode_body(getattr(types().BatchSizeManager, f"{name}_args")(**arguments))
    return wire.encode_frame(name, 1, 1, body)


def test_answer_may_be_large_but_answers_do_not_pile_up_unread(monkeypatch):
    monkeypatch.setattr(endpoint, "MAX_UNREAD", 2_000)
    jobs = Jobs()
    for i in range(50):
        jobs.create(f"job-{i}", JobSettings(2, 8))
    transport = Unread()

    async def talk():
        memory = memoryview(bytearray(4096))
        connection = Connection(Service(jobs, lambda: 0.0), set(), memory)
        connection.connection_made(transport)
        for frame in [call("hello", version=VERSION, token=""), *[call("status", job="")] * 3]:
            memory[: len(frame)] = frame
            connection.buffer_updated(len(frame))
            ended.append(transport.aborted)

    ended: list[bool] = []
    asyncio.run(talk())
    assert ended == [False, False, True, True]
    hello, status = transport.sent
    assert len(hello) < endpoint.MAX_UNREAD < len(status)


def test_failing_job_does_not_stop_the_sweep_of_others(monkeypatch, caplog):
    now = 0.0
    jobs = Jobs()
    service = Service(jobs, lambda: now)
    first, second = (jobs.create(name, JobSettings(1, 8)) for name in "ab")
    second.join("w", 0, 5.0, now=0.0)
    monkeypatch.setattr(first, "expire", lambda now: 1 / 0)
    now = 6.0
    service.sweep()
    assert second.workers == ()
    assert re.search(r"\bleases of job a\b", caplog.text)
    assert "ZeroDivisionError" in caplog.text and "job b" not in caplog.text
