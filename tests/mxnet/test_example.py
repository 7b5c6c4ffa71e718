"""The example runs on two workers, with and without a manager."""

import re
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from evenstep.mxnet.launch import LocalJob
from tests.manager.managers import running

ROOT = Path(__file__).parents[2]
EXAMPLE = "examples/mxnet_digits.py"


@pytest.mark.distributed
@pytest.mark.timeout(150)
@pytest.mark.parametrize("managed", [False, True])
def test_example_learns_to_read_digits(tmp_path, managed):
    with running(log=tmp_path / "log") as manager:
        where = ["--manager", manager.address] if managed else []
        done = subprocess.run(
            [sys.executable, "-m", "evenstep.mxnet.launch", "--workers", "2", EXAMPLE, *where],
            cwd=ROOT, capture_output=True, text=True, timeout=140,
        )  # fmt: skip
        jobs = manager.status()
    assert done.returncode == 0, done.stderr
    line = r"^epoch (\d): batch sizes (\d+)/(\d+), loss ([\d.]+)$"
    epochs = re.findall(line, done.stdout, re.MULTILINE)
    assert [int(epoch) for epoch, *_ in epochs] == [0, 1, 2]
    assert {int(first) + int(second) for _, first, second, _ in epochs} == {64}
    [accuracy] = re.findall(r"^accuracy ([\d.]+)% on the samples", done.stdout, re.MULTILINE)
    assert float(accuracy) > 90
    # On equal cores the policy may well keep the sizes of plain BSP.
    assert re.search(
        r"^evenstep: batch sizes \d+/\d+(, as in plain BSP)?; ", done.stderr, re.MULTILINE
    )
    assert set(jobs) == ({"mxnet-digits"} if managed else set())


def test_a_job_that_fails_ends_and_says_so(tmp_path):
    script = tmp_path / "fails.py"
    script.write_text("raise SystemExit(3)")
    done = subprocess.run(
        [sys.executable, "-m", "evenstep.mxnet.launch", script],
        cwd=ROOT, capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert done.returncode == 1
    assert re.search(r"failed with exit code 3\b", done.stderr)


def test_a_job_that_is_told_to_end_leaves_nothing(tmp_path):
    script = tmp_path / "waits.py"
    script.write_text("import time; print('here', flush=True); time.sleep(100)")
    words = [sys.executable, "-m", "evenstep.mxnet.launch", "--workers", "1", str(script)]
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True) as launcher:
        assert launcher.stdout is not None
        assert launcher.stdout.readline() == "here\n"
        children = psutil.Process(launcher.pid).children()
        launcher.terminate()
        assert launcher.wait(timeout=60) == 143
    assert len(children) == 3
    assert not any(child.is_running() for child in children)


def test_a_job_whose_command_cannot_be_started_leaves_nothing():
    before = set(psutil.Process().children())
    with pytest.raises(FileNotFoundError):
        LocalJob(["/no/such/command"])
    assert set(psutil.Process().children()) <= before
