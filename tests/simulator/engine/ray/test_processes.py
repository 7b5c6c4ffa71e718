"""Runs on Ray leave no process and no file, however they end, and an existing Ray untouched."""

import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path

import psutil
import pytest

pytestmark = pytest.mark.timeout(300)

ROOT = Path(__file__).parents[4]


def processes_of(mark):
    """Return the processes with a mark in their environment."""
    return [
        process
        for process in psutil.process_iter(["environ"])
        if (process.info["environ"] or {}).get("EVENSTEP_TEST") == mark
    ]


def drive(how, temporary, *address, interrupt=None):
    """Run the driver, with a signal once it trains; return its exit code and what it left."""
    mark = uuid.uuid4().hex
    environment = {**os.environ, "EVENSTEP_TEST": mark, "TMPDIR": temporary}
    environment["PYTHONPATH"] = str(ROOT)
    command = [sys.executable, "-m", "tests.simulator.engine.ray.driver", how, *address]
    with subprocess.Popen(
        command,
        env=environment,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        # Background jobs of a shell ignore SIGINT, and their children would too.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"running\n"
            assert len(processes_of(mark)) > (1 if not address else 0)
            if interrupt is not None:
                process.send_signal(interrupt)
            code = process.wait(timeout=60)
        finally:
            left = processes_of(mark)
            for process_left in left:
                process_left.kill()
    return code, left


@pytest.mark.parametrize(
    ("how", "interrupt", "code"),
    [
        ("raise", None, 1),
        ("go on", signal.SIGINT, -signal.SIGINT),
        ("go on", signal.SIGTERM, 128 + signal.SIGTERM),
    ],
)
def test_nothing_is_left(how, interrupt, code):
    with tempfile.TemporaryDirectory(prefix="es", dir="/tmp") as temporary:
        assert drive(how, temporary, interrupt=interrupt) == (code, [])
        assert list(Path(temporary).glob("evenstep-*")) == []


def test_existing_ray_is_used_by_its_address_and_left_running(local_ray):
    import ray

    address = ray.get_runtime_context().gcs_address
    with tempfile.TemporaryDirectory(prefix="es", dir="/tmp") as temporary:
        assert drive("finish", temporary, address) == (0, [])
    wait_for_actors_to_end()
    assert ray.get(ray.remote(lambda: 3).remote(), timeout=60) == 3


def wait_for_actors_to_end():
    """Fail unless the processes of actors end on their own."""
    deadline = time.monotonic() + 30
    while any("Actor" in p.name() for p in psutil.Process().children(recursive=True)):
        assert time.monotonic() < deadline, "actors are left"
        time.sleep(0.1)


def test_local_ray_listens_on_loopback_only(local_ray):
    listening = {
        connection.laddr.ip
        for process in [psutil.Process(), *psutil.Process().children(recursive=True)]
        for connection in process.net_connections(kind="inet")
        if connection.status == psutil.CONN_LISTEN
    }
    assert listening <= {"127.0.0.1", "::ffff:127.0.0.1", "::1"}
    assert listening
