"""Workers that die, stop, fail or hang: the others say which one, and a watchdog ends the job."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from evenstep.runlog import read
from tests.pytorch.test_elastic import ROOT, finish, torchrun

pytestmark = [pytest.mark.distributed, pytest.mark.soak, pytest.mark.timeout(240)]

JOB = "tests.pytorch.lost_job"
LONG = 90.0
"""Seconds within which a job must have ended, on a busy machine."""


def run(folder: Path, mode: str, lost: int, at: int, count: int = 3, **options: Any) -> list[str]:
    """Run a job to its end, and return the output of each worker with its exit code.

    The lost worker is killed once the others have ended.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    group = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(count),
             "PYTHONPATH": str(ROOT), "GLOO_SOCKET_IFNAME": "lo"}  # fmt: skip
    command = [sys.executable, "-m", JOB, mode, str(lost), str(at), json.dumps(options)]
    outputs = [folder / f"worker-{worker}" for worker in range(count)]
    processes = []
    try:
        for worker, output in enumerate(outputs):
            with output.open("w") as file:
                processes.append(subprocess.Popen(
                    command, env={**os.environ, **group, "RANK": str(worker)},
                    stdout=file, stderr=subprocess.STDOUT,
                ))  # fmt: skip
        for worker, process in enumerate(processes):
            if worker != lost or mode not in ("stop", "hang") or options:
                process.wait(LONG)
    finally:
        for process in processes:
            process.kill()
            process.wait()
    texts = [output.read_text() for output in outputs]
    return [f"{text}exit {p.returncode}" for text, p in zip(texts, processes, strict=True)]


FOUND = {
    "kill": r"was last heard of \d+ s ago, in iteration [34]: it died, is stopped",
    "stop": r"was last heard of \d+ s ago, in iteration [34]: it died, is stopped",
    "raise": "has ended in iteration 4, by ValueError: a broken sample",
    "hang": "is running, but still at work in iteration 4. If it is only slow, straggler=",
}


@pytest.mark.parametrize("mode", FOUND)
def test_every_survivor_names_the_lost_worker_and_the_iteration(tmp_path, mode):
    *survivors, _ = run(tmp_path, mode, 2, 4)
    for text in survivors:
        lost = r"WorkerLost: all workers must complete the exchange of iteration 4, but it failed: "
        assert re.search(rf"{lost}worker 2 \(\S+, process \d+\) {FOUND[mode]}", text), text
        assert "The process group says: " in text
        assert text.endswith("exit 1")


def test_loss_of_the_worker_with_the_store_is_said_too(tmp_path):
    _, *survivors = run(tmp_path, "kill", 0, 4)
    for text in survivors:
        assert "the process of rank 0 died or is cut off: its store cannot be reached" in text


def test_watchdog_ends_all_workers_with_their_stacks(tmp_path):
    log = tmp_path / "run.jsonl"
    texts = run(tmp_path, "hang", 2, 24, watchdog=3, log=str(log))
    assert ["endless_loop" in text for text in texts] == [False, False, True]
    for worker, text in enumerate(texts):
        assert re.search(r"watchdog ends the job: worker \d .* in iteration 24 for", text), text
        assert f"[worker {worker}] thread MainThread:" in text
        assert text.endswith("exit 1")
    # It may be the watchdog of any worker.
    note = "".join(event.text or "" for event in read(log).events)
    assert re.search(r"worker 2 \(\S+, process \d+\) (was|is running, but still) at work", note)


def test_watchdog_leaves_a_job_alone_whose_workers_wait_for_an_evaluation(tmp_path):
    for text in run(tmp_path, "fine", 0, 24, watchdog=3):
        assert text.endswith("trained to the end\nexit 0"), text
        assert "evenstep:" not in text


def test_watchdog_lets_torchrun_see_a_failure():
    job = torchrun("-m", JOB, "hang", "1", "24", '{"watchdog": 3}', workers=2)
    text = finish(job, LONG)
    assert job.returncode != 0
    assert "[worker 0] thread MainThread:" in text
    assert "endless_loop" in text
