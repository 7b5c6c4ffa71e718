"""The example: two processes train together, and learn the digits."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "jax_digits.py"


@pytest.mark.distributed
@pytest.mark.timeout(280)
def test_the_example_learns_on_two_processes():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    command = [sys.executable, str(EXAMPLE), address, "2"]
    processes = [
        subprocess.Popen(
            [*command, str(process)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        for process in range(2)
    ]
    try:
        outputs = [process.communicate(timeout=240) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert [process.returncode for process in processes] == [0, 0], outputs
    printed, said = outputs[0]
    accuracy = re.search(r"accuracy ([\d.]+)% after", printed)
    assert accuracy is not None and float(accuracy[1]) > 60, printed
    programs = re.search(r"programs (\d+), bucket 8", printed)
    assert programs is not None and 1 <= int(programs[1]) <= 8, printed
    assert "evenstep: batch sizes" in said
