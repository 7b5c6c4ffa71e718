"""The stream of a manager: tried again whatever is at its other end, and the token stays here."""

import socket
import threading
import time
from contextlib import contextmanager

import pytest

from evenstep.errors import ManagerUnreachable
from evenstep.manager.access import parse_address
from evenstep.runlog import Event, Header, IterationRow, Record, manager_stream
from evenstep.runlog.follower import FileFollower, JobFollower, ManagerFollower
from evenstep.runlog.manager_stream import ManagerStream
from tests.manager.managers import boundary, running, until

TOKEN = "correct-horse-battery"
STREAM = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@contextmanager
def answering(answer: bytes):
    """Yield a port that gives everybody the same answer, and what it was asked."""
    asked: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def work():
            while True:
                try:
                    line, _ = listening.accept()
                except OSError:
                    return
                with line:
                    asked.append(line.recv(4096))
                    line.sendall(answer)

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        try:
            yield listening.getsockname()[1], asked
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            thread.join(5)


@pytest.fixture(autouse=True)
def hasty(monkeypatch):
    monkeypatch.setattr(manager_stream, "PAUSE", 0.01)


@pytest.mark.parametrize(
    "answer", [b"\x80\x01 what a remote call looks like\r\n\r\n", STREAM + b"20\r\n: cut off\n\n"]
)
def test_a_line_is_tried_again_where_no_manager_answers_or_one_dies_in_an_event(answer):
    with answering(answer) as (port, asked):
        stream = ManagerStream(("127.0.0.1", port))
        stream.start()
        try:
            until(lambda: len(asked) > 2, "another try")
            until(lambda: "cannot be reached: " in (stream.problem or ""), "what is wrong")
        finally:
            stream.close()


def test_any_letters_of_a_token_reach_the_manager_as_it_reads_them():
    token = "schlüssel-из-слов"
    with answering(b"") as (port, asked):
        stream = ManagerStream(("127.0.0.1", port), token)
        stream.start()
        try:
            until(lambda: asked, "the request")
        finally:
            stream.close()
    assert f"Authorization: Bearer {token}\r\n".encode() in asked[0]


def test_a_redirection_does_not_get_the_token():
    with answering(b"") as (elsewhere, asked):
        answer = f"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:{elsewhere}/\r\n\r\n".encode()
        with answering(answer) as (port, asked_first):
            stream = ManagerStream(("127.0.0.1", port), TOKEN)
            stream.start()
            try:
                until(lambda: len(asked_first) > 1, "another try")
            finally:
                stream.close()
        assert TOKEN.encode() in asked_first[0]
        assert asked == []
        assert stream.problem == f"the manager on 127.0.0.1:{port} answers 302 Found"


def test_manager_that_is_not_there_is_an_error_that_says_how_to_start_one():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = listening.getsockname()
    with pytest.raises(ManagerUnreachable) as raised:
        ManagerStream(address).connect()
    assert str(raised.value) == (
        f"the manager on 127.0.0.1:{address[1]} cannot be reached: Connection refused; "
        "start one with `evenstep manager`"
    )


def test_address_of_the_manager_leads_to_its_events(tmp_path):
    token = tmp_path / "token"
    token.write_text(TOKEN)
    with running("--token-file", token, log=tmp_path / "log") as manager:
        stream = ManagerStream(parse_address(manager.address), TOKEN)
        stream.connect()
        assert stream.problem is None
        stream.close()
        with pytest.raises(ManagerUnreachable, match="answers 401"):
            ManagerStream(parse_address(manager.address), "wrong-wrong-wrong-wrong").connect()


def test_manager_without_events_says_so(tmp_path):
    with (
        running("--http", "off", log=tmp_path / "log") as manager,
        pytest.raises(ManagerUnreachable, match=r"answers 421 .* are off \(--http\)"),
    ):
        ManagerStream(parse_address(manager.address)).connect()


@pytest.mark.parametrize("port", ["0", "65536", "-1", "x", "9" * 5000])
def test_port_that_is_none_is_not_asked(port):
    answer = f"HTTP/1.1 421 Misdirected Request\r\nEvenstep-HTTP-Port: {port}\r\n\r\n".encode()
    with answering(answer) as (first, asked):
        with pytest.raises(ManagerUnreachable, match="answers 421"):
            ManagerStream(("127.0.0.1", first)).connect()
        assert len(asked) == 1


def test_port_of_events_that_is_closed_is_named():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        closed = listening.getsockname()[1]
    head = f"HTTP/1.1 421 Misdirected Request\r\nEvenstep-HTTP-Port: {closed}\r\n\r\n"
    with answering(head.encode()) as (port, asked):
        with pytest.raises(ManagerUnreachable, match=f"refused on port {closed}.* --http"):
            ManagerStream(("127.0.0.1", port)).connect()
        assert len(asked) == 1


def test_ports_that_lead_to_each_other_end():
    answer = b"HTTP/1.1 421 Misdirected Request\r\nEvenstep-HTTP-Port: %d\r\n\r\n"
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def work():
            for _ in range(2):
                line, _ = listening.accept()
                with line:
                    line.recv(4096)
                    line.sendall(answer % listening.getsockname()[1])

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        with pytest.raises(ManagerUnreachable, match="answers 421"):
            ManagerStream(listening.getsockname()).connect()
        thread.join(5)
        assert not thread.is_alive()


def test_manager_that_wants_a_token_refuses_others(tmp_path):
    token = tmp_path / "token"
    token.write_text(TOKEN)
    with running("--token-file", token, log=tmp_path / "log") as manager:
        address = parse_address(manager.url.removeprefix("http://"))
        with pytest.raises(ManagerUnreachable, match="answers 401"):
            ManagerStream(address, "wrong-wrong-wrong-wrong").connect()
        stream = ManagerStream(address, TOKEN)
        stream.connect()
        assert stream.problem is None
        stream.close()


def train(manager, last=4):
    clients = [manager.connect("resnet", w, workers=2, total=60, lease=60.0) for w in "ab"]
    boundary(clients, 0)
    for k in range(1, last):
        boundary(clients, k, 10.0, 20.0)
        time.sleep(0.3)
    return clients


def test_manager_that_goes_away_is_told_and_followed_again(tmp_path):
    state = ("--state", tmp_path / "state", "--http", "127.0.0.1:0")
    with running(*state, log=tmp_path / "log") as manager:
        clients = train(manager)
        address = parse_address(manager.url.removeprefix("http://"))
        stream = ManagerStream(address, job="resnet")
        stream.connect()
        stream.start()
        follower = JobFollower(ManagerFollower(stream), "resnet")
        try:
            until(lambda: any(isinstance(r, Header) for r in follower.poll()), "the first record")
            manager.stop()
            until(lambda: follower.problem, "the end of the manager")
            again = running("--http", f"127.0.0.1:{address[1]}", log=tmp_path / "log2")
            with again:
                until(lambda: follower.problem is None, "the return of the manager")
        finally:
            stream.close()
            for client in clients:
                client.close()


def test_records_over_http_are_those_of_the_managers_run_log(tmp_path):
    with running("--logs", tmp_path / "logs", log=tmp_path / "log") as manager:
        stream = ManagerStream(parse_address(manager.url.removeprefix("http://")))
        stream.start()
        follower = JobFollower(ManagerFollower(stream))
        records: list[Record] = []

        def has_ended():
            records.extend(follower.poll())
            return bool(records) and isinstance(records[-1], Event) and records[-1].kind == "end"

        try:
            for client in train(manager, last=6):
                client.leave()
            until(has_ended, "the end of the run")
        finally:
            stream.close()
        manager.stop()
    (path,) = (tmp_path / "logs").glob("*.jsonl")
    truth = FileFollower(path).poll()
    assert labels(truth) == labels(records) != []
    assert records[-1] == truth[-1]


def labels(records):
    rows = [record for record in records if isinstance(record, IterationRow)]
    return [(row.iteration, row.plan, row.batch_sizes.tolist(), row.times.tolist()) for row in rows]


def test_nonsense_is_told_and_tried_again():
    nonsense = b'event: iteration\ndata: {"event":"iteration","job":"x"}\n\n'
    with answering(b"HTTP/1.0 200 OK\r\n\r\n" + nonsense) as (port, asked):
        stream = ManagerStream(("127.0.0.1", port))
        stream.start()
        follower = ManagerFollower(stream)
        try:
            until(lambda: follower.poll() == [] and follower.misunderstood, "a word on nonsense")
            until(lambda: len(asked) > 1, "another try")
        finally:
            stream.close()


def test_events_nobody_looks_at_do_not_fill_memory(monkeypatch):
    monkeypatch.setattr(manager_stream, "MOST_WAITING", 3)
    told = b"".join(b'id: %d\ndata: {"number":%d}\n\n' % (n, n) for n in range(1, 9))
    with answering(b"HTTP/1.0 200 OK\r\n\r\n" + told) as (port, _):
        stream = ManagerStream(("127.0.0.1", port))
        stream.start()
        try:
            until(lambda: stream._events.full(), "a full queue")
            seen: list[int] = []

            def all_seen():
                while (data := stream.next()) is not None:
                    seen.append(data["number"])
                return len(seen) >= 8

            until(all_seen, "the last event")
            assert seen[:8] == list(range(1, 9))
        finally:
            stream.close()


def test_rows_that_were_missed_are_counted():
    workers = {"time": 0.0, "job": "j", "workers": ["w"], "batch_sizes": [8]}

    def row(k):
        figures = {"times": [0.5], "waiting": [0.0], "next_plan": 0}
        return workers | {"event": "iteration", "iteration": k} | figures

    stream = ManagerStream(("127.0.0.1", 1))
    for data in (
        workers | {"event": "plan", "iteration": 0, "plan": 0},
        row(0),
        row(5),  # A manager does not send every iteration: nothing was missed.
        {"event": "missed", "first": 7, "last": 9},
        row(12),
    ):
        stream.put(data)
    follower = JobFollower(ManagerFollower(stream), "j")
    records = follower.poll()
    rows = [record.iteration for record in records if isinstance(record, IterationRow)]
    assert rows == [0, 5, 12]
    assert [e.text for e in records if isinstance(e, Event)] == [None, "6 rows missed"]
    assert follower.num_missed == 6
