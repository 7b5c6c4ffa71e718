"""The event stream: events that followers get and miss, and the isolation of followers."""

import asyncio
import contextlib
import http.client
import itertools
import json
import os
import signal
import socket
import urllib.parse
from typing import Any

import pytest

from evenstep.core import Report
from evenstep.manager import events as events_module
from evenstep.manager import http_server
from evenstep.manager.events import MAX_FOLLOWERS, EventStream
from evenstep.manager.http_routes import HttpRoutes, follow
from evenstep.manager.http_server import HttpPort
from evenstep.manager.job import Job
from evenstep.manager.job_settings import JobSettings
from evenstep.manager.notifications import Notification, Notifications
from tests.manager.managers import PATIENCE, boundary, running, said, until
from tests.manager.test_metrics import figures


@contextlib.contextmanager
def following(manager, path="/events", **headers):
    """Follow the events of a manager; yields a function that returns the next one."""
    where = urllib.parse.urlsplit(manager.url)
    connection = http.client.HTTPConnection(where.hostname, where.port, timeout=PATIENCE)
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    assert answer.status == 200
    assert answer.headers["Content-Type"] == "text/event-stream; charset=utf-8"

    def next_event():
        fields = {}
        while True:
            text = answer.readline().decode().rstrip("\n")
            if text.startswith(":"):
                continue
            if text:
                name, _, value = text.partition(": ")
                fields[name] = value
            elif "data" in fields:
                return int(fields["id"]), fields["event"], json.loads(fields["data"])

    assert answer.readline().startswith(b": ")
    try:
        yield next_event
    finally:
        answer.close()
        connection.close()


def test_follower_sees_a_job_from_beginning_to_end(manager, job):
    with following(manager, f"/events?job={job}") as next_event:
        clients = [
            manager.connect(job, w, workers=2, total=60, policy="proportional", predictor="ema")
            for w in "ab"
        ]
        boundary(clients, 0)
        boundary(clients, 1, 10.0, 20.0)
        for client in clients:
            client.leave()
        seen: list[tuple[int, str, dict[str, Any]]] = []
        while not seen or seen[-1][1] != "ended":
            seen.append(next_event())
    numbers = [number for number, _, _ in seen]
    assert numbers == sorted(set(numbers))
    assert {data["job"] for _, _, data in seen} == {job}
    expected = "created joined joined begun plan plan iteration left left ended"
    assert " ".join(kind for _, kind, _ in seen) == expected
    events_seen = [data for _, _, data in seen]
    settings = {"workers": 2, "total": 60, "policy": "proportional", "predictor": "ema"}
    assert events_seen[0]["settings"] == {
        **settings,
        "minimum": 1,
        "granularity": 1,
        "elastic": False,
    }
    assert [events_seen[1]["worker"], events_seen[2]["worker"]] == ["a", "b"]
    first, second, iteration = events_seen[4:7]
    assert (first["plan"], first["batch_sizes"], first["iteration"]) == (0, [30, 30], 0)
    assert (second["plan"], second["batch_sizes"], second["iteration"]) == (1, [20, 40], 1)
    assert second["workers"] == ["a", "b"] and second["reason"] == "predicted speeds"
    assert (iteration["iteration"], iteration["batch_sizes"]) == (0, [10, 10])
    assert iteration["boundary"] == 1
    assert (iteration["times"], iteration["waiting"]) == ([1.0, 0.5], [0.0, 0.5])
    assert (iteration["next_plan"], iteration["next_speeds"]) == (1, [10.0, 20.0])
    assert events_seen[-1]["reason"] == "all workers left"


def test_who_comes_back_gets_what_is_kept_since(manager, job):
    with following(manager, f"/events?job={job}") as next_event:
        manager.command("create", job, "--workers", 1, "--total", 8)
        number, kind, _ = next_event()
        assert kind == "created"
    with manager.connect(job, "a") as client:
        boundary([client], 0)
    with following(manager, f"/events?job={job}", **{"Last-Event-ID": str(number)}) as next_event:
        assert [next_event()[1] for _ in range(4)] == ["joined", "begun", "plan", "left"]
    with following(manager, f"/events?job={job}", **{"Last-Event-ID": "0"}) as next_event:
        # Events of an earlier manager are reported as missed.
        assert [next_event()[1] for _ in range(2)] == ["missed", "created"]


def test_lost_and_returning_workers_are_events(manager, job):
    with following(manager, f"/events?job={job}") as next_event:
        a = manager.connect(job, "a", workers=1, total=8, lease=60.0)
        boundary([a], 0)
        a.close()
        again = manager.connect(job, "a", lease=0.5, iteration=1)
        again.close()
        kinds = [next_event()[1] for _ in range(7)]
    assert kinds == ["created", "joined", "begun", "plan", "back", "lost", "ended"]


def test_follower_that_is_gone_is_noticed_at_once(manager):
    def followers():
        return figures(manager.get("/metrics")[1])["evenstep_event_followers",]

    # That job has no events, so nothing is sent.
    with following(manager, "/events?job=none"):
        assert followers() == 1
    until(lambda: followers() == 0, "the end of the follower")


def test_wrong_last_event_is_refused(manager):
    for wrong in ("x", "-1", "9" * 30):
        assert manager.get("/events", **{"Last-Event-ID": wrong})[0] == 400


def test_recovered_state_is_an_event(tmp_path):
    with running("--state", tmp_path / "state", log=tmp_path / "log") as manager:
        client = manager.connect("j", "a", workers=1, total=8)
        client.boundary(said("a", 0))
        client.close()
        manager.stop()
        manager.start()
        with following(manager, **{"Last-Event-ID": "0"}) as next_event:
            assert next_event()[1] == "missed"
            _, kind, data = next_event()
        assert (kind, data["iteration"], data["workers"]) == ("recovered", 1, ["a"])


def a_notification(text=""):
    return Notification("created", "j", details={"text": text})


def kinds_of(texts):
    return [line[7:] for line in b"".join(texts).decode().splitlines() if line.startswith("event:")]


def test_follower_that_never_reads_is_cut_off_and_others_are_served(monkeypatch):
    monkeypatch.setattr(http_server, "PATIENCE", 1.0)
    events = EventStream()
    pages = HttpRoutes(lambda: pytest.fail("no metrics"), lambda: None, events)
    port = HttpPort(pages.respond)

    async def connect(url, room=None):
        where = urllib.parse.urlsplit(url)
        client = socket.socket()
        if room is not None:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, room)
        client.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(client, (where.hostname, where.port))
        await loop.sock_sendall(client, b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        return client

    async def read(client):
        answer = b""
        while b"the last one" not in answer:
            piece = await asyncio.get_running_loop().sock_recv(client, 1 << 20)
            assert piece, "it was cut off"
            answer = answer[-100:] + piece
        return answer

    async def scenario():
        async with port.listening("127.0.0.1", 0, None) as (url,):
            deaf, good = await connect(url, 4096), await connect(url)
            while events.num_followers < 2:
                await asyncio.sleep(0.01)
            reading = asyncio.create_task(read(good))
            # More than all buffers between the two ends hold, and more than is kept.
            for _ in range(20):
                for _ in range(events_module.MAX_EVENTS // 10):
                    events.receive(a_notification("x" * 4000))
                await asyncio.sleep(0.01)
            assert events.num_followers == 2
            while events.num_followers == 2:
                await asyncio.sleep(0.05)
            events.receive(a_notification("the last one"))
            await reading
            assert events.num_followers == 1
            deaf.close(), good.close()

    asyncio.run(asyncio.wait_for(scenario(), PATIENCE))
    assert len(events._events) == events_module.MAX_EVENTS
    pages.close()


def test_followers_that_come_at_once_are_limited_and_keep_no_request_out(tmp_path):
    request = b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with running(log=tmp_path / "log") as manager, contextlib.ExitStack() as stack:
        where = urllib.parse.urlsplit(manager.url)
        address = where.hostname, where.port
        clients = [socket.create_connection(address, PATIENCE) for _ in range(60)]
        # All requests arrive together, so that all are checked before any stream begins.
        os.kill(manager.process.pid, signal.SIGSTOP)
        clients += [socket.create_connection(address, PATIENCE) for _ in range(50)]
        for client in clients:
            stack.enter_context(client).sendall(request)
        os.kill(manager.process.pid, signal.SIGCONT)
        statuses = [int(client.recv(12).split()[1]) for client in clients]
        assert sorted(statuses) == [200] * MAX_FOLLOWERS + [503] * (110 - MAX_FOLLOWERS)
        assert num_followers(manager) == MAX_FOLLOWERS
        stack.close()
        until(lambda: num_followers(manager) == 0, "the end of all followers")
        with following(manager):
            assert num_followers(manager) == 1


def num_followers(manager):
    return figures(manager.get("/metrics")[1])[("evenstep_event_followers",)]


@pytest.mark.parametrize("method", ["HEAD", "GET"])
def test_place_of_a_follower_is_given_back_once_if_its_stream_never_begins(method):
    events = EventStream()
    pages = HttpRoutes(lambda: pytest.fail("no metrics"), lambda: None, events)
    clients: list[asyncio.StreamWriter] = []
    writers: list[asyncio.StreamWriter] = []
    most = 0

    async def respond(request):
        nonlocal most
        answer = await pages.respond(request)
        most = max(most, events.num_followers)
        if method == "GET":
            # All clients are gone before the first byte is sent.
            while clients:
                clients.pop().transport.abort()
            await asyncio.sleep(0.1)
        return answer

    async def scenario():
        port = HttpPort(respond)
        async with port.listening("127.0.0.1", 0, None) as (url,):
            where = urllib.parse.urlsplit(url)
            for _ in range(20):
                reader, writer = await asyncio.open_connection(where.hostname, where.port)
                writer.write(f"{method} /events HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
                clients.append(writer)
                writers.append(writer)
                if method == "HEAD":
                    assert (await reader.read()).startswith(b"HTTP/1.1 200")
                    writer.close()
                    await writer.wait_closed()
            while port.num_connections:
                await asyncio.sleep(0.01)
            for writer in writers:
                writer.transport.abort()
            await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(scenario(), PATIENCE))
    assert most >= 1
    assert events.num_followers == 0
    pages.close()


def test_slow_follower_gets_a_missed_event(monkeypatch):
    monkeypatch.setattr(events_module, "MAX_EVENTS", 3)
    events = EventStream(clock=lambda: 0.002)

    async def scenario():
        texts = follow(events, None, None)
        await anext(texts)
        for _ in range(5):
            events.receive(a_notification())
        missed, rest = await anext(texts), await anext(texts)
        await texts.aclose()
        return missed, rest

    missed, rest = asyncio.run(scenario())
    assert missed == b'id: 3\nevent: missed\ndata: {"event":"missed","first":2,"last":3}\n\n'
    assert [line for line in rest.split(b"\n") if line.startswith(b"id")] == [
        b"id: 4", b"id: 5", b"id: 6",
    ]  # fmt: skip


def test_number_from_a_clock_that_was_ahead_replays_what_is_kept():
    events = EventStream(clock=lambda: 1.0)
    events.receive(a_notification())

    async def scenario():
        texts = follow(events, 10**9, None)
        got = [await anext(texts), await anext(texts)]
        await texts.aclose()
        return got

    assert kinds_of(asyncio.run(scenario())) == ["created"]


def test_kept_workers_are_limited_and_iteration_events_are_spaced(monkeypatch):
    monkeypatch.setattr(events_module, "MAX_ENTRIES", 50)
    moments = iter(range(1_000_000))
    monkeypatch.setattr("evenstep.manager.job_history.time.monotonic", lambda: 0.1 * next(moments))
    events, notifications = EventStream(), Notifications()
    notifications.listen(events.receive)
    job = Job("j", JobSettings(2, 60, "even"), notifications=notifications)
    for worker in "ab":
        job.join(worker, 0, 5.0, now=0.0)
    for k in range(100):
        for worker in "ab":
            job.report(said(worker, k, 10.0 if k else None), None, now=0.0)
    kept = list(events.after(0))
    assert sum(event.num_entries for event in kept) <= 50
    # A boundary every 0.1 s, and figures every 0.25 s at most.
    events_seen = [json.loads(e.text.split(b"data: ")[1])["iteration"] for e in kept]
    assert {event.kind for event in kept} == {"iteration"}
    assert {b - a for a, b in itertools.pairwise(events_seen)} == {3}


def test_figures_are_of_one_iteration_where_a_device_is_measured_late(monkeypatch):
    monkeypatch.setattr(events_module, "INTERVAL", 0.0)
    monkeypatch.setattr(events_module, "INTERVAL_PER_WORKER", 0.0)
    events, notifications = EventStream(), Notifications()
    notifications.listen(events.receive)
    job = Job("j", JobSettings(2, 60, "even"), notifications=notifications)
    for worker in "ab":
        job.join(worker, 0, 5.0, now=0.0)
    for k in range(6):
        job.report(said("a", k, 10.0 if k else None, size=10 + k), None, now=0.0)
        late = Report("b", k, 20 + k, 1.0, measured=k - 2) if k > 1 else Report("b", k)
        job.report(late, None, now=0.0)
    events_seen = [json.loads(e.text.split(b"data: ")[1]) for e in events.after(0)]
    sizes = [(e["iteration"], e["batch_sizes"]) for e in events_seen if e["event"] == "iteration"]
    # The sizes that a reported are 10 + k at the boundary of k, and those of b are a boundary late.
    assert sizes == [(0, [11, 0]), (1, [12, 23]), (2, [13, 24]), (3, [14, 25])]
    assert [e["boundary"] for e in events_seen if e["event"] == "iteration"] == [1, 3, 4, 5]


def test_failing_listener_does_not_affect_others(caplog):
    notifications, heard = Notifications(), []

    def fail(notification):
        raise RuntimeError("on purpose")

    notifications.listen(fail)
    notifications.listen(lambda notification: heard.append(notification.kind))
    notifications.notify(a_notification())
    assert heard == ["created"]
    assert "a listener failed for notification" in caplog.text
