"""Elastic restarts under torchrun: killed workers, and stragglers that are left behind."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections import defaultdict
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
import torch

from tests.pytorch.elastic_job import EVERY, NUM_SAMPLES, SPEEDS, TOTAL
from tests.pytorch.setup import data

pytestmark = [pytest.mark.distributed, pytest.mark.compatibility]

ROOT = Path(__file__).parent.parent.parent
LAST = -(-NUM_SAMPLES // TOTAL) - 1
KILLS = [[0, 0], [1, 1], [2, 7], [0, LAST]]


def torchrun(*arguments, workers=3, restarts=0, nodes="1", **popen):
    command = [sys.executable, "-m", "torch.distributed.run", f"--nnodes={nodes}",
               f"--nproc-per-node={workers}", f"--max-restarts={restarts}",
               "--monitor-interval=0.1", *arguments]  # fmt: skip
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        # Restarted workers would read the addresses of those before them.
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
    }
    return subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, start_new_session=True, **popen
    )  # fmt: skip


def finish(process, timeout):
    try:
        out, _ = process.communicate(timeout=timeout)
    finally:
        end(process)
    return out


def end(process):
    """End torchrun and its workers, by their ids."""
    try:
        family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(True)]
    except psutil.NoSuchProcess:
        return
    for member in family:
        with suppress(psutil.NoSuchProcess):
            member.send_signal(signal.SIGKILL)
    process.wait()


def wait_for(port, seconds=60.0):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        with socket.socket() as client:
            if client.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise AssertionError(f"nobody listens on port {port} after {seconds} s")


def train(folder, kills):
    folder.mkdir()
    process = torchrun(
        "--standalone", "-m", "tests.pytorch.elastic_job", str(folder), json.dumps(kills),
        restarts=len(kills),
    )  # fmt: skip
    out = finish(process, timeout=150)
    assert process.returncode == 0, out[-3000:]
    return json.loads((folder / "result").read_text())


def committed(folder):
    """Return the samples of every iteration, in the last attempt that ran it to its end."""
    seen: dict[int, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for file in folder.glob("seen-*"):
        for line in file.read_text().splitlines():
            attempt, k, samples = json.loads(line)
            seen[k][attempt] += samples
    return {k: attempts[max(attempts)] for k, attempts in seen.items()}


@pytest.mark.timeout(300)
def test_epoch_completes_exactly_once_whoever_is_killed_and_when(tmp_path):
    through = train(tmp_path / "through", [])
    killed = train(tmp_path / "killed", KILLS)
    assert killed["attempt"] == len(KILLS)
    iterations = committed(tmp_path / "killed")
    assert sorted(iterations) == list(range(LAST + 1))
    assert [len(iterations[k]) for k in range(LAST)] == [TOTAL] * LAST
    everything = sorted(x for samples in iterations.values() for x in samples)
    assert everything == sorted(data(NUM_SAMPLES, torch.float64)[:][0][:, 0].tolist())
    assert killed["parameters"] == pytest.approx(through["parameters"], rel=1e-9)
    # The last attempt went on with the sizes and filters of the last checkpoint.
    assert LAST // EVERY > 1
    fair = [TOTAL * speed / sum(SPEEDS) for speed in SPEEDS]
    assert killed["first"] == pytest.approx(fair, abs=1.5)
    assert killed["filters"] == pytest.approx([1 / speed for speed in SPEEDS], rel=0.2)


@pytest.mark.timeout(240)
def test_straggler_is_left_behind_and_the_epoch_goes_on(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    agents = {}
    try:
        for name, speed in {"a": 1000.0, "b": 2000.0, "slow": 0.5}.items():
            agents[name] = torchrun(
                "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=job",
                "--rdzv-conf=last_call_timeout=4", "--local-addr=127.0.0.1",
                "-m", "tests.pytorch.straggler_job", str(tmp_path), name, str(speed),
                workers=1, restarts=2, nodes="2:3",
            )  # fmt: skip
            # The first agent keeps the meeting place: with it everybody would have to leave.
            wait_for(port)
        outs = {name: finish(agent, timeout=120) for name, agent in agents.items()}
    finally:
        for agent in agents.values():
            end(agent)
    assert [agents[name].returncode for name in "ab"] == [0, 0], json.dumps(outs, indent=1)[
        -6000:
    ].replace("\\n", "\n")
    assert agents["slow"].returncode != 0
    assert "restarting without worker slow, which is too slow" in outs["a"]
    seen = {
        name: [json.loads(line) for line in (tmp_path / f"seen-{name}").read_text().splitlines()]
        for name in agents
    }
    assert {workers for _, workers, *_ in seen["slow"]} == {3}
    left = max(k for k, *_ in seen["slow"])
    assert [workers for _, workers, *_ in seen["a"]] == [3] * left + [2] * (40 - left)
    # Those who go on do so with what was learned about them.
    assert sorted(seen["a"][-1][3]) == pytest.approx([8, 16], abs=1)
    everything = sorted(x for rows in seen.values() for row in rows for x in row[2])
    assert everything == sorted(data(24 * 40)[:][0][:, 0].tolist())


@pytest.mark.example
@pytest.mark.timeout(240)
def test_example_goes_on_after_a_worker_was_killed(tmp_path):
    checkpoint = tmp_path / "elastic.pt"
    process = torchrun(
        "--standalone", "examples/elastic.py", "--epochs=10", f"--checkpoint={checkpoint}",
        workers=2, restarts=1,
    )  # fmt: skip
    try:
        until = time.monotonic() + 90
        while not checkpoint.exists() and process.poll() is None and time.monotonic() < until:
            time.sleep(0.05)
        victim = psutil.Process(process.pid).children()[-1]
        victim.send_signal(signal.SIGKILL)
    finally:
        out = finish(process, timeout=90)
    assert process.returncode == 0, out[-3000:]
    [iteration] = re.findall(r"going on after iteration (\d+) of epoch \d+", out)
    assert int(iteration) >= 5
    [accuracy] = re.findall(r"accuracy ([\d.]+)% after 10 epochs", out)
    assert float(accuracy) > 90
    assert not checkpoint.exists()
