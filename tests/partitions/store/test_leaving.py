"""Workers that leave, in good order or with their disks."""

import shutil

import numpy as np
import pytest

from evenstep.errors import InvalidSetting
from evenstep.partitions.handover.protocol import Adopted, Begin, Commit, Envelope, Given, Staged
from evenstep.partitions.rules.plan import targets_when
from evenstep.partitions.store import Agent, Partition, carry_out, plan_tasks, settle_lost, verify
from tests.partitions.store.folders import NUM_SAMPLES, content, three_partitions
from tests.partitions.store.test_migration import assert_all_is_at_rest, opened, sizes


def leave(folders, batch_sizes=None):
    with opened(folders) as partitions:
        tasks = plan_tasks(partitions, batch_sizes, "m1", chunk_size=4, leaving=["w1"])
        assert {task.phase for task in carry_out(partitions, tasks)} == {"done"}
        partitions[1].compact()


@pytest.mark.parametrize("batch_sizes, after", [(None, [30, 0, 30]), ([10, 99, 20], [20, 0, 40])])
def test_partition_of_who_leaves_is_shared_out_and_nothing_is_lost(tmp_path, batch_sizes, after):
    folders = three_partitions(tmp_path)
    leave(folders, batch_sizes)
    assert sizes(folders) == after
    assert_all_is_at_rest(folders)
    # The folder of who left may go: the others have every sample, and it shows.
    shutil.rmtree(folders.pop(1))
    found = verify(folders)
    assert (found.problems, found.complete, found.num_missing) == ((), True, 0)
    together = {k: v for f in folders for k, v in content(Partition.open(f)).items()}
    assert together == {sample: sample for sample in range(NUM_SAMPLES)}


def test_nothing_comes_to_who_has_left_before(tmp_path):
    folders = three_partitions(tmp_path)
    leave(folders)
    with opened(folders) as partitions:
        assert plan_tasks(partitions, None, "m2") == ()
        carry_out(partitions, plan_tasks(partitions, None, "m3", minimum=5, leaving=["w2"]))
    assert sizes(folders) == [NUM_SAMPLES, 0, 0]


def test_classes_of_who_leaves_are_mixed_into_the_others(tmp_path):
    folders = three_partitions(tmp_path)
    before = Partition.open(folders[1]).labels
    leave(folders)
    for folder in (folders[0], folders[2]):
        labels = Partition.open(folder).labels
        assert labels is not None and before is not None
        assert [int((labels == label).sum()) for label in np.unique(before)] == [5, 5]


def test_nobody_leaves_who_is_not_there_and_somebody_stays():
    with pytest.raises(InvalidSetting, match=r"leaving .* a, b, got c"):
        targets_when(["c"], ["a", "b"], [1, 1], None)
    with pytest.raises(InvalidSetting, match="stay, got a, b "):
        targets_when(["a", "b"], ["a", "b"], [1, 1], None)


def hand_over_until(folders, last, chunk_size=4):
    """Let w0 hand samples to w1, up to a kind of message, which is not delivered."""
    with opened(folders) as partitions:
        agents = {partition.name: Agent(partition) for partition in partitions}
        samples = tuple(partitions[0].samples[:8].tolist())
        queue = [Envelope("@manager", "w0", Begin("m1-0", "w1", samples, chunk_size))]
        while queue:
            envelope = queue.pop(0)
            if isinstance(envelope.message, last):
                return
            if envelope.to in agents:
                queue += agents[envelope.to].handle(envelope)
            else:
                queue.append(Envelope("@manager", "w0", Commit("m1-0")))
    raise AssertionError("it must come to that")


@pytest.mark.parametrize(
    "last, lost, missing",
    [
        # Everything is staged at w1, whether w0 knew or not: taken over.
        (Staged, "w0", 12),
        (Given, "w0", 12),
        # w0 had only offered: it keeps them.
        (Staged, "w1", 20),
        # w0 had given them, and they are lost with w1.
        (Given, "w1", 28),
        (Adopted, "w1", 28),
    ],
)
def test_others_go_on_when_a_disk_is_lost_in_the_middle_of_a_hand_over(
    tmp_path, last, lost, missing
):
    folders = three_partitions(tmp_path)
    hand_over_until(folders, last)
    shutil.rmtree(tmp_path / lost)
    rest = [folder for folder in folders if folder.name != lost]
    with opened(rest) as partitions:
        with pytest.raises(InvalidSetting, match=r"open .* got m1-0"):
            plan_tasks(partitions, [1, 3], "m2")
        settle_lost(partitions, [lost])
        tasks = carry_out(partitions, plan_tasks(partitions, [1, 3], "m2"))
        assert {task.phase for task in tasks} == {"done"}
    found = verify(rest)
    assert (found.problems, found.complete) == ((), False)
    assert (found.open_hand_overs, found.num_missing) == ((), missing)
    assert found.num_samples == NUM_SAMPLES - missing


def test_nobody_is_lost_who_is_here(tmp_path):
    folders = three_partitions(tmp_path)
    hand_over_until(folders, Staged)
    with (
        opened(folders) as partitions,
        pytest.raises(InvalidSetting, match=r"lost .* got w0"),
    ):
        settle_lost(partitions, ["w0"])
    assert verify(folders).problems == ()
