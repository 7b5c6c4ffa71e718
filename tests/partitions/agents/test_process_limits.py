"""The process of an agent ends with the program that started it."""

import signal
import subprocess
import sys

import pytest

WAIT = """
import os, sys, time
if sys.argv[1] == "closed":
    os.close(0)
from evenstep.partitions.agents.process_limits import terminate_at_eof
terminate_at_eof()
time.sleep(60)
"""


@pytest.mark.timeout(60)
@pytest.mark.parametrize("stdin", ["ended", "closed"])
def test_a_command_ends_when_its_standard_input_has(stdin):
    command = [sys.executable, "-c", WAIT, stdin]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=40)
    assert (done.returncode, done.stderr) == (-signal.SIGTERM, b"")
