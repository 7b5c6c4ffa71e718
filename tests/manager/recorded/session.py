"""A session that makes every call of the manager, and how the bytes of one are recorded.

`python -m tests.manager.recorded.session FOLDER` records a session of the present client with the
present manager, the state that the manager saved, and the Thrift file of both, in a new folder.
`version-1` was recorded before `hello` knew of ranges of versions; its files are never changed.
"""

import contextlib
import json
import shutil
import socket
import struct
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import evenstep
from evenstep import Report, Usage
from evenstep.manager.connection import ServiceConnection, Where
from evenstep.manager.job_settings import JobSettings
from evenstep.manager.messages import from_settings
from tests.manager.managers import running, together

JOB = "resnet"
SETTINGS = JobSettings(2, 60, "proportional", "ema")
TIMES = {"a": (None, 3.0, 2.0), "b": (None, 1.5, 2.0)}
LEASE = 60.0


def session(address: str) -> dict[str, Any]:
    """Create a job, train with two workers, leave; return what the client made of the replies."""
    with closing(ServiceConnection(Where(address), 5.0)) as asking:
        asking.call("create", 5.0, job=JOB, settings=from_settings(SETTINGS), reuse=None)
        clients = [evenstep.connect(address, JOB, w, agree=True, lease=LEASE) for w in TIMES]
        plans = []
        for k in range(3):
            actions = [lambda c=c, k=k: c.boundary(_report(c.worker, k, c)) for c in clients]
            plans += together(*actions)
        connection = clients[0]._membership.connection
        assert connection is not None
        connection.call("renew", 5.0)
        (status,) = asking.call("status", 5.0, job=JOB)
        for client in clients:
            client.leave()
    return {
        "sizes": [plan.sizes.tolist() for plan in plans],
        "numbers": [plan.number for plan in plans],
        "settings": [client.settings for client in clients],
        "workers": [(worker.worker, worker.connected) for worker in status.workers],
        "iteration": status.iteration,
    }


def _report(worker: str, iteration: int, client: Any) -> Report:
    size, time = client.batch_size, TIMES[worker][iteration]
    if time is None:
        return Report(worker, iteration)
    return Report(worker, iteration, size, time, Usage(0.75, 0.5))


@contextlib.contextmanager
def tap(address: str, frames: list[tuple[int, str, str]]) -> Iterator[str]:
    """Pass connections on to a manager, and note every frame: connection, direction, hex digits."""
    host, port = address.rsplit(":", 1)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def accept() -> None:
            number = 0
            with contextlib.suppress(OSError):
                while True:
                    inner, _ = server.accept()
                    outer = socket.create_connection((host, int(port)))
                    for way, ends in (("to", (inner, outer)), ("from", (outer, inner))):
                        threading.Thread(target=copy, args=(number, way, *ends)).start()
                    number += 1

        def copy(number: int, way: str, source: socket.socket, target: socket.socket) -> None:
            with contextlib.suppress(OSError):
                while frame := read_frame(source):
                    frames.append((number, way, frame.hex()))
                    target.sendall(frame)
                target.shutdown(socket.SHUT_WR)

        threading.Thread(target=accept, daemon=True).start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)


def read_frame(source: socket.socket) -> bytes:
    """Return the next frame with its length; nothing at the end of the connection."""
    head = _read(source, 4)
    return head and head + _read(source, struct.unpack("!i", head)[0])


def _read(source: socket.socket, length: int) -> bytes:
    content = b""
    while len(content) < length:
        came = source.recv(length - len(content))
        if not came:
            return b""
        content += came
    return content


def record(folder: Path) -> None:
    """Record a session, a saved state and the Thrift file."""
    folder.mkdir()
    frames: list[tuple[int, str, str]] = []
    with TemporaryDirectory() as scratch:
        state = Path(scratch) / "state"
        with running("--state", state, log=Path(scratch) / "log") as manager:
            with tap(manager.address, frames) as address:
                session(address)
            # The state of a job that has learned from one run, and is in the next.
            clients = [manager.connect(JOB, worker, lease=LEASE) for worker in TIMES]
            together(*[lambda c=c: c.boundary(Report(c.worker, 0)) for c in clients])
            for client in clients:
                client.close()
            manager.stop()
        for saved in state.glob("*.npz"):
            shutil.copy(saved, folder)
    shutil.copy(Path(evenstep.__file__).parent / "manager" / "manager.thrift", folder)
    lines = ",\n".join(json.dumps(frame) for frame in frames)
    (folder / "session.json").write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    record(Path(sys.argv[1]))
