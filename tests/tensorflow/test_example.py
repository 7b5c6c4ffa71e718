"""The example runs on two workers, by a loop and by fit, and learns."""

import re
import subprocess
import sys

import pytest

from evenstep import runlog
from tests.distributed.workers import ROOT
from tests.tensorflow.cluster import free_ports

TIMEOUT = 150


@pytest.mark.distributed
@pytest.mark.timeout(180)
@pytest.mark.parametrize("options", [[], ["--fit"]], ids=["loop", "fit"])
def test_example_learns_to_read_digits(options, tmp_path):
    log = tmp_path / "run.jsonl"
    addresses = ",".join(f"127.0.0.1:{port}" for port in free_ports(2))
    command = [sys.executable, "examples/tensorflow_digits.py", "--addresses", addresses]
    workers = [
        subprocess.Popen(
            [*command, str(worker), "--log", str(log), *options],
            cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for worker in range(2)
    ]  # fmt: skip
    try:
        said = [worker.communicate(timeout=TIMEOUT) for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    for worker, (out, err) in zip(workers, said, strict=True):
        assert worker.returncode == 0, err
        [accuracy] = re.findall(r"^worker \d: accuracy ([\d.]+)% after 4 epochs$", out, re.M)
        assert float(accuracy) > 90
    # On equal cores the policy may well keep the sizes of plain BSP.
    assert re.search(r"^evenstep: batch sizes \d+/\d+(, as in plain BSP)?; ", said[0][1], re.M)
    assert runlog.read(log).matrix("batch_sizes").sum(axis=1).tolist() == [*[64] * 15, 40] * 4
