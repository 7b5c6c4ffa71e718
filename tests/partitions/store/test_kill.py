"""SIGKILL in the middle of changes: the partition is the old one or the new one."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from evenstep.partitions.store import Partition, finish, verify
from tests.partitions.store.folders import three_partitions

ROOT = Path(__file__).parents[2]

SCRIPT = """
import sys
from evenstep.partitions.store import Partition, carry_out, finish, plan_tasks

partitions = [Partition.open(folder, write=True) for folder in sys.argv[2:]]
finish(partitions)
print("ready", flush=True)
for number in range(100000):
    sizes = [10, 20, 30] if number % 2 else [30, 20, 10]
    name = f"{sys.argv[1]}-{number}"
    carry_out(partitions, plan_tasks(partitions, sizes, name, chunk_size=4))
    if number % 3 == 2:
        for partition in partitions:
            partition.compact()
"""


def killed_after(seconds, name, folders):
    """Run migrations back and forth in a process, and kill it in the middle of them."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT, name, *map(str, folders)],
        stdout=subprocess.PIPE,
        env=environment,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            time.sleep(seconds)
        finally:
            process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL


def test_a_killed_process_leaves_partitions_that_are_whole(tmp_path):
    folders = three_partitions(tmp_path)
    versions = 0
    for attempt in range(5):
        killed_after(0.05 + 0.05 * attempt, f"run{attempt}", folders)
        found = verify(folders)
        assert (found.problems, found.complete) == ((), True)
        versions = sum(Partition.open(folder).index.version for folder in folders)
    assert versions > 20  # they were at work

    partitions = [Partition.open(folder, write=True) for folder in folders]
    finish(partitions)
    for partition in partitions:
        partition.compact()
        partition.close()
    found = verify(folders)
    assert (found.problems, found.open_hand_overs, found.num_samples) == ((), (), 60)
