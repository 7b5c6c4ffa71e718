"""Managers and clients of different versions: recorded older ones, and made-up newer ones."""

import contextlib
import json
import shutil
import socket
import threading
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import thriftpy2
from thriftpy2.thrift import TMessageType

from evenstep.core.archive import write_archive
from evenstep.errors import Refused
from evenstep.manager import wire
from evenstep.manager.connection import MANAGER, SOFTWARE, ServiceConnection, Where
from evenstep.manager.jobs import Jobs
from tests.manager.managers import PATIENCE, running
from tests.manager.recorded.session import JOB, SETTINGS, TIMES, read_frame, session

VERSION_1 = Path(__file__).parent / "recorded" / "version-1"
FRAMES: list[tuple[int, str, bytes]] = [
    (number, way, bytes.fromhex(text))
    for number, way, text in json.loads((VERSION_1 / "session.json").read_text())
]
"""Each frame: the number of its connection, whether it went to or from the manager, its bytes."""
OLD = thriftpy2.load(str(VERSION_1 / "manager.thrift"), module_name="recorded_manager_thrift")


def decoded(frame: bytes, kind: int) -> tuple[str, dict[str, Any]]:
    """Return the name and the content of a message, as an older program reads them."""
    message = wire.parse_message(frame[4:])
    assert message.kind == kind, frame
    part = "args" if kind == TMessageType.CALL else "result"
    struct = getattr(OLD.BatchSizeManager, f"{message.name}_{part}")()
    return message.name, _plain(wire.decode_body(struct, message.body))


def _plain(value: Any) -> Any:
    """Return a struct as a dict, without what may differ from session to session."""
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if not hasattr(value, "thrift_spec"):
        return value
    names = {field[1] for field in value.thrift_spec.values()} - {"instance", "reason"}
    return {name: _plain(getattr(value, name)) for name in names}


def test_recorded_session_makes_every_call():
    made = {decoded(frame, TMessageType.CALL)[0] for _, way, frame in FRAMES if way == "to"}
    assert made == set(OLD.BatchSizeManager.thrift_services)


def test_older_client_works_with_this_manager(tmp_path):
    with running(log=tmp_path / "log") as manager, contextlib.ExitStack() as stack:
        host, port = manager.address.split(":")
        lines: dict[int, socket.socket] = {}
        for number, way, frame in FRAMES:
            if number not in lines:
                line = socket.create_connection((host, int(port)), PATIENCE)
                lines[number] = stack.enter_context(line)
            if way == "to":
                lines[number].sendall(frame)
                continue
            reply = read_frame(lines[number])
            (call, got), recorded = (decoded(one, TMessageType.REPLY) for one in (reply, frame))
            if call == "join":
                # A job begins a moment after its last worker has joined.
                got["success"]["plan"] = recorded[1]["success"]["plan"]
            assert (call, got) == recorded


@contextlib.contextmanager
def older_manager():
    """A manager that replies with the recorded bytes, and notes calls that differ from those."""
    replies: dict[int, list[bytes]] = defaultdict(list)
    calls: dict[int, list[bytes]] = defaultdict(list)
    for number, way, frame in FRAMES:
        (calls if way == "to" else replies)[number].append(frame)
    different: list[Any] = []

    def serve(line: socket.socket, number: int) -> None:
        with line:
            for call, reply in zip(calls[number], replies[number], strict=True):
                came = read_frame(line)
                if not came:
                    return
                heard, known = decoded(came, TMessageType.CALL), decoded(call, TMessageType.CALL)
                if heard != known:
                    different.append((number, heard, known))
                line.sendall(reply)

    def accept() -> None:
        with contextlib.suppress(OSError):
            for number in calls:
                line, _ = server.accept()
                threading.Thread(target=serve, args=(line, number), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=accept, daemon=True).start()
        yield f"127.0.0.1:{server.getsockname()[1]}", different
        server.shutdown(socket.SHUT_RDWR)


def test_this_client_works_with_an_older_manager():
    with older_manager() as (address, different):
        seen = session(address)
    assert different == []
    assert seen == {
        "sizes": [[30, 30]] * 2 + [[20, 40]] * 4,
        "numbers": [0, 0, 1, 1, 1, 1],
        "settings": [SETTINGS] * 2,
        "workers": [("a", True), ("b", True)],
        "iteration": 3,
    }


def known_to_the_older_manager(oldest, newest):
    callee = replace(MANAGER, oldest=oldest, newest=newest)
    with older_manager() as (address, different):
        connection = ServiceConnection(Where(address), 5.0, callee)
        connection.close()
        return connection.version, different


def test_newer_client_uses_the_version_of_an_older_manager():
    assert known_to_the_older_manager(1, 2) == (1, [])


def test_client_names_itself_where_an_older_manager_refuses():
    """The refusal of a manager from before ranges, in its words."""
    words = "this manager speaks version 1, got 2"
    refusal = OLD.Refused(problem=OLD.Problem.VERSION, message=words)
    body = wire.encode_body(OLD.BatchSizeManager.hello_result(refused=refusal))
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            line, _ = server.accept()
            with line:
                read_frame(line)
                line.sendall(wire.encode_frame("hello", TMessageType.REPLY, 1, body))

        threading.Thread(target=serve, daemon=True).start()
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(Refused) as refused:
            ServiceConnection(Where(address), 5.0, replace(MANAGER, oldest=2, newest=3))
    assert (refused.value.problem, str(refused.value)) == (
        "VERSION",
        f"{words}; this client is {SOFTWARE}, which knows versions 2 to 3",
    )


NEWER = """
import dataclasses, sys
from evenstep.cli.main import main
from evenstep.manager import client_connection, service
service.MANAGER = dataclasses.replace(service.MANAGER, oldest={}, newest={})
client_connection.SOFTWARE = "evenstep 9.9.9"
sys.exit(main())
"""


@pytest.mark.parametrize(
    ("manager_range", "client_range", "version"),
    [((1, 2), (1, 1), 1), ((1, 2), (1, 2), 2), ((1, 2), (2, 3), 2), ((2, 3), (1, 2), 2)],
)  # fmt: skip
def test_newest_common_version_is_used(tmp_path, manager_range, client_range, version):
    oldest, newest = client_range
    callee = replace(MANAGER, oldest=oldest, newest=newest)
    with running(code=NEWER.format(*manager_range), log=tmp_path / "log") as manager:
        connection = ServiceConnection(Where(manager.address), 5.0, callee)
        assert connection.version == version
        assert connection.call("status", 5.0, job="") == []
        connection.close()


@pytest.mark.parametrize(
    ("oldest", "newest", "known"), [(2, 3, "versions 2 to 3"), (4, 4, "version 4")]
)
def test_versions_without_overlap_are_refused_and_both_named(tmp_path, oldest, newest, known):
    with running(code=NEWER.format(oldest, newest), log=tmp_path / "log") as manager:
        with pytest.raises(Refused) as refused:
            manager.connect("j", "a", workers=1, total=8)
        assert (refused.value.problem, str(refused.value)) == (
            "VERSION",
            f"this manager is evenstep 9.9.9, which knows {known}, "
            f"got a client that is {SOFTWARE}, which knows version 1",
        )
    # The other way round: a newer client, and the manager of today.
    with running(log=tmp_path / "log") as manager:
        callee = replace(MANAGER, oldest=oldest, newest=newest)
        with pytest.raises(Refused, match=f"which knows version 1, got .* which knows {known}$"):
            ServiceConnection(Where(manager.address), 5.0, callee)


def saying_hello(address, **arguments):
    """Return the message of the refusal of a hello with these arguments."""
    connection = ServiceConnection.__new__(ServiceConnection)
    connection._where, connection._callee, connection._sequence = Where(address), MANAGER, 0
    connection._socket = connection._connect(5.0)
    with contextlib.closing(connection), pytest.raises(Refused) as refused:
        connection.call("hello", 5.0, token="", **arguments)
    assert refused.value.problem == "VERSION"
    return str(refused.value)


def test_nonsense_for_a_version_is_refused(manager):
    for nonsense in ({}, {"version": 0}, {"version": -5}, {"version": 2, "newest": 1},
                     {"version": -(2**31), "newest": -1}, {"version": 2**31 - 1}):  # fmt: skip
        assert "which knows version 1, got a client that is an older program" in saying_hello(
            manager.address, **nonsense
        )
    long = saying_hello(manager.address, version=7, software="x\n\x1b[2J" + "y" * 5000)
    assert long.isprintable() and len(long) < 300


def test_greeting_of_no_known_version_is_refused_by_the_client(monkeypatch, manager):
    greeting = wire.types().Greeting(version=5, software="evenstep 9.9.9")
    monkeypatch.setattr(ServiceConnection, "call", lambda *_, **__: greeting)
    with pytest.raises(Refused, match=f"this client is {SOFTWARE}, which knows version 1, got a "
                       r"manager that is evenstep 9\.9\.9, which knows version 5$"):  # fmt: skip
        ServiceConnection(Where(manager.address), 5.0)


def test_saved_state_of_an_older_manager_is_read(tmp_path):
    shutil.copy(VERSION_1 / f"{JOB}.job.npz", tmp_path)
    with running("--state", tmp_path, log=tmp_path / "log") as manager:
        (status,) = manager.status().values()
        assert (status["job"], status["running"], status["iteration"]) == (JOB, True, 1)
        assert [worker["worker"] for worker in status["workers"]] == list(TIMES)
        assert status["plan"]["sizes"] == [20, 40]
        manager.stop()
        assert "cannot be used" not in manager.log


def test_saved_state_of_a_later_format_is_set_aside_whole(tmp_path, caplog):
    path = tmp_path / f"{JOB}.job.npz"
    with np.load(VERSION_1 / path.name) as archive:
        arrays = {name: archive[name] for name in archive.files if name != "checksum"}
    write_archive(path, {**arrays, "format": np.array(99), "news": np.arange(3)})
    content = path.read_bytes()
    jobs = Jobs(tmp_path)
    jobs.recover(now=0.0)
    assert list(jobs) == []
    jobs.close()
    assert "the format must be 1, got 99" in caplog.text
    assert (tmp_path / f"{path.name}.damaged-1").read_bytes() == content
