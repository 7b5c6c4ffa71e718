"""Samples migrate between real processes while they train together, and nobody waits for it."""

from __future__ import annotations

import contextlib
import logging
import subprocess
import sys
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
import torch.distributed as dist

from evenstep.partitions import MigrationRule
from evenstep.partitions.store import Partition, verify
from evenstep.pytorch import Serving
from evenstep.runlog import read
from tests.distributed.workers import Workers
from tests.pytorch.setup import model_of, parameters
from tests.pytorch_partitions.partitions import endless, make, one_by_one, train_on, training

# Background processes have a low priority, so that a busy machine delays them.
pytestmark = [pytest.mark.distributed, pytest.mark.timeout(300)]
run_long = partial(Workers.run, timeout=180, count=3)

HELD, TABLE = (24, 24, 24), [(3, 9, 12)]
TARGETS = [9, 27, 36]
RULE = MigrationRule(threshold=1.0)
LONGEST = 20_000
"""Iterations: a migration takes far fewer, at 5 ms each."""


@dataclass
class Seen:
    """What a worker saw of an iteration."""

    numbers: list[int]
    sizes: list[int]
    """Of all partitions."""
    consumed: list[int]
    migrations: int


def train(folders, after=30, attempts=LONGEST, spoil=None, **settings):
    """Train until partitions have changed, or more migrations were begun, and then some more."""
    seen: list[Seen] = []
    warned: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: warned.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("evenstep.pytorch.local_migration").addHandler(handler)
    with training(folders, TABLE, rule=RULE, **settings) as (balancer, loader):
        if spoil is not None:
            {"kill_an_agent": kill_an_agent, "damage_rows": damage_rows}[spoil](folders)
        first = loader.sizes.tolist()
        for batch in endless(loader):
            consumed = loader.traversals.consumed.tolist()
            numbers = batch[2].tolist()
            seen.append(Seen(numbers, loader.sizes.tolist(), consumed, loader.num_migrations))
            train_on(balancer, batch)
            time.sleep(0.005)
            done = seen[-1].sizes != first or seen[-1].migrations > attempts
            after -= done
            if after < 0 or len(seen) == LONGEST:
                break
        own = Partition.open(folders[dist.get_rank()]).samples.tolist()
        same = parameters(model_of(balancer))
    logging.getLogger("evenstep.pytorch.local_migration").removeHandler(handler)
    return seen, own, same.tolist(), warned


def numbers_of(seen):
    return [number for one in seen for number in one.numbers]


def notes_of(log):
    """Return the iterations and texts of the notes in a run log."""
    return [(event.iteration, event.text or "") for event in read(log).events_of("note")]


@pytest.mark.parametrize("num_workers", [0, 1])
def test_all_workers_change_over_at_the_same_boundary(workers, tmp_path, num_workers):
    folders = make(tmp_path, *HELD)
    log = str(tmp_path / "run.jsonl")
    token = tmp_path / "token"
    token.write_text("correct-horse-battery-staple")
    found = run_long(
        workers,
        train,
        folders=folders,
        num_workers=num_workers,
        log=log,
        serving=Serving(token_file=str(token)),
    )
    begun = next(k for k, one in enumerate(found[0][0]) if one.migrations == 1)
    change = next(k for k, one in enumerate(found[0][0]) if one.sizes != list(HELD))
    # Training went on meanwhile.
    assert change - begun > 10
    for worker, (seen, own, same, warned) in enumerate(found):
        # The same on all workers: what they know of each other is equal in every iteration.
        assert [one.sizes for one in seen] == [one.sizes for one in found[0][0]]
        assert seen[-1].sizes == TARGETS
        # Counts are reset at this iteration, and every traversal before and after is whole.
        assert seen[change].consumed == list(TABLE[0])
        assert one_by_one(numbers_of(seen[:change]), HELD[worker])
        assert one_by_one(numbers_of(seen[change:]), TARGETS[worker])
        assert set(numbers_of(seen[change:])) == set(own)
        assert same == found[0][2]
        assert not warned
    assert sorted(number for _, own, _, _ in found for number in own) == list(range(sum(HELD)))
    assert verify(folders).problems == ()
    (first, begins), (last, ends) = notes_of(log)
    assert (first, last) == (begun, change)
    assert "15 samples move" in begins
    assert f"15 samples moved, partitions {TARGETS}" in ends


def agents():
    """Return the processes of agents that this worker has started."""
    return [one for one in psutil.Process().children() if "serve" in one.cmdline()]


def kill_an_agent(folders):
    if dist.get_rank() == 1:
        [agent] = agents()
        agent.kill()


def damage_rows(folders):
    """Let no row of worker 0 fit its checksum any more; what is in it stays."""
    if dist.get_rank() == 0:
        [block] = Path(folders[0], "blocks").glob("*.npy")
        np.load(block, mmap_mode="r+")["crc"] += 1


def test_a_migration_that_fails_leaves_everything_as_it_was(workers, tmp_path):
    folders = make(tmp_path, *HELD)
    log = str(tmp_path / "run.jsonl")
    found = run_long(workers, train, folders=folders, spoil="damage_rows", attempts=1, log=log)
    for worker, (seen, own, same, _) in enumerate(found):
        # The rule counted from 0, and has asked again.
        assert seen[-1].migrations == 2
        assert {tuple(one.sizes) for one in seen} == {HELD}
        assert one_by_one(numbers_of(seen), HELD[worker])
        assert set(numbers_of(seen)) == set(own)
        assert same == found[0][2]
    begins, ends, again = (text for _, text in notes_of(log)[:3])
    assert "migration 1 begins" in begins
    assert "migration 1 ends: 0 samples moved" in ends
    assert "does not fit its checksum" in ends
    assert "migration 2 begins" in again
    # Worker 0 says so, too; the others do not know why.
    assert [warned[:1] for *_, warned in found] == [[ends], [], []]


def test_an_agent_that_was_killed_is_started_again(workers, tmp_path):
    folders = make(tmp_path, *HELD)
    log = str(tmp_path / "run.jsonl")
    found = run_long(workers, train, folders=folders, spoil="kill_an_agent", log=log)
    for worker, (seen, own, *_) in enumerate(found):
        change = next(k for k, one in enumerate(seen) if one.sizes != list(HELD))
        assert seen[-1].sizes == TARGETS
        assert one_by_one(numbers_of(seen[:change]), HELD[worker])
        assert set(numbers_of(seen[change:])) == set(own)
    # Nothing was lost by the attempts that failed before.
    assert verify(folders).problems == ()
    assert "Connection refused" in notes_of(log)[1][1]


def stop_in_mid_migration(folders):
    """Train until samples of worker 0 are being handed over, and stop there."""
    slow = Serving(bandwidth=50)
    with training(folders, TABLE, rule=RULE, serving=slow) as (balancer, loader):
        for batch in endless(loader):
            train_on(balancer, batch)
            begun = torch.tensor(len(Partition.open(folders[0]).index.open_hand_overs))
            dist.broadcast(begun, 0)
            if begun:
                break
            time.sleep(0.01)
    return agents()


def go_on(folders):
    with training(folders, TABLE, rule=RULE) as (_, loader):
        return loader.sizes.tolist(), sorted(loader.partition.index.open_hand_overs)


def test_what_a_training_left_in_the_middle_is_finished_when_it_begins_again(workers, tmp_path):
    folders = make(tmp_path, *HELD)
    assert run_long(workers, stop_in_mid_migration, folders=folders) == [[]] * 3
    left = verify(folders)
    assert left.open_hand_overs
    assert left.problems == ()
    # What was begun has been handed over; what was not, is not.
    for sizes, still_open in run_long(workers, go_on, folders=folders):
        assert (sum(sizes), still_open) == (sum(HELD), [])
        assert sizes[0] < HELD[0]
    assert verify(folders).open_hand_overs == ()


START_AND_WAIT = """
import os, sys, time
from pathlib import Path
from evenstep.pytorch.background_processes import AgentProcess, Serving
agent = AgentProcess(Path(sys.argv[1]), Serving())
child = os.fork()
if child:
    print(agent.pid, child, flush=True)
time.sleep(60)
os._exit(0)
"""


def test_an_agent_ends_with_whoever_started_it_however_that_ends(tmp_path):
    """Also if a child survives, as a loading process may whose parent was killed."""
    [folder] = make(tmp_path, 20)
    command = [sys.executable, "-c", START_AND_WAIT, folder]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            agent, child = map(psutil.Process, map(int, process.stdout.readline().split()))
        finally:
            process.kill()
    try:
        with contextlib.suppress(psutil.NoSuchProcess):
            agent.wait(20)
        # Nobody holds the partition any more.
        Partition.open(folder, write=True).close()
    finally:
        child.kill()
