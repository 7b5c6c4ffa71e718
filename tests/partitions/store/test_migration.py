"""Migrations between partitions on disk: whole, mixed, and safe from a crash at every write."""

import contextlib
from dataclasses import replace

import numpy as np
import pytest

from evenstep.errors import InvalidSetting
from evenstep.partitions.handover.protocol import Chunk
from evenstep.partitions.handover.task import Task
from evenstep.partitions.store import (
    Agent,
    Partition,
    carry_out,
    finish,
    open_tasks,
    plan_tasks,
    verify,
)
from evenstep.partitions.store import (
    partition as store,
)
from evenstep.partitions.store.blocks import write_rows
from evenstep.partitions.store.index import write_index
from tests.partitions.store.folders import NUM_SAMPLES, content, three_partitions

BATCH_SIZES = [10, 20, 30]


class Crash(BaseException):
    """The process is gone."""


@contextlib.contextmanager
def opened(folders):
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(Partition.open(f, write=True)) for f in folders]


def migrate(folders, seed=0, **settings):
    """Move samples to where the batch sizes want them; return the outcome of each hand-over."""
    with opened(folders) as partitions:
        tasks = plan_tasks(partitions, BATCH_SIZES, "m1", seed=seed, chunk_size=4, **settings)
        return carry_out(partitions, tasks)


def sizes(folders):
    return [len(Partition.open(folder)) for folder in folders]


def assert_all_is_well(folders):
    found = verify(folders)
    assert (found.problems, found.complete) == ((), True)


def assert_all_is_at_rest(folders):
    assert_all_is_well(folders)
    assert verify(folders).open_hand_overs == ()
    together: dict[int, int] = {}
    for folder in folders:
        together |= content(Partition.open(folder))
    assert together == {sample: sample for sample in range(NUM_SAMPLES)}


def test_partitions_follow_the_batch_sizes_and_come_out_mixed(tmp_path):
    folders = three_partitions(tmp_path)
    before = [set(Partition.open(folder).samples.tolist()) for folder in folders]
    outcome = migrate(folders)
    assert [(t.giver, t.receiver, len(t.samples), t.phase) for t in outcome] == [
        ("w0", "w2", 10, "done")
    ]
    assert sizes(folders) == [10, 20, 30]
    assert_all_is_at_rest(folders)
    received = set(Partition.open(folders[2]).samples.tolist()) - before[2]
    assert received <= before[0]
    last = Partition.open(folders[2])
    assert last.labels is not None
    assert np.bincount(last.labels).tolist() == [5, 5, 0, 0, 10, 10]


def test_a_second_migration_has_nothing_to_do(tmp_path):
    folders = three_partitions(tmp_path)
    migrate(folders)
    assert migrate(folders) == ()


def test_compaction_after_a_migration_keeps_everything(tmp_path):
    folders = three_partitions(tmp_path)
    migrate(folders)
    with opened(folders) as partitions:
        assert [partition.compact() > 0 for partition in partitions] == [True, False, False]
        assert [len(partition.index.blocks) for partition in partitions] == [1, 1, 1]
    assert_all_is_at_rest(folders)


def test_a_full_disk_leaves_everything_as_it_was_and_is_reported(tmp_path):
    width = 12 + 2 * 3 * 4 + 8
    folders = three_partitions(tmp_path, quota=29 * width)
    (outcome,) = migrate(folders)
    assert outcome.phase == "failed"
    assert outcome.reason == (
        f"w2 refused: {10 * width} bytes must fit the quota, which leaves {9 * width}"
    )
    assert sizes(folders) == [20, 20, 20]
    assert_all_is_at_rest(folders)


def test_damaged_rows_are_not_handed_over(tmp_path):
    folders = three_partitions(tmp_path)
    path = folders[0] / "blocks" / "block-00000000.npy"
    octets = bytearray(path.read_bytes())
    octets[-1] ^= 1
    path.write_bytes(octets)
    with opened(folders) as partitions:
        damaged = partitions[0].samples[-1]
        (outcome,) = carry_out(partitions, [Task("m1-0", "w0", "w1", (0, int(damaged)))])
    assert outcome.phase == "failed"
    assert outcome.reason == f"{path}: sample {damaged} does not fit its checksum"
    assert sizes(folders) == [20, 20, 20]


def test_a_chunk_that_changed_on_its_way_is_refused(tmp_path, monkeypatch):
    honest = Agent._chunk

    def spoiled(self, record, number):
        envelope = honest(self, record, number)
        assert isinstance(envelope.message, Chunk)
        payload = bytes(envelope.message.payload[:-1]) + b"?"
        return replace(envelope, message=replace(envelope.message, payload=payload))

    folders = three_partitions(tmp_path)
    monkeypatch.setattr(Agent, "_chunk", spoiled)
    (outcome,) = migrate(folders)
    assert outcome.reason == "w2 refused: chunk 0 does not fit its checksum"
    assert sizes(folders) == [20, 20, 20]
    assert_all_is_at_rest(folders)


def test_a_disk_that_fails_is_refused_with_what_it_says(tmp_path, monkeypatch):
    def full(self, name, rows):
        raise OSError(28, "No space left on device")

    folders = three_partitions(tmp_path)
    monkeypatch.setattr(Partition, "write_block", full)
    (outcome,) = migrate(folders)
    assert outcome.reason == "w2 refused: chunk 0 cannot be written: No space left on device"
    assert_all_is_at_rest(folders)


def test_a_partition_that_is_not_there_fails_the_hand_over(tmp_path):
    folders = three_partitions(tmp_path)
    with opened(folders[:1]) as partitions:
        tasks = [Task("m1-0", "w0", "w9", (0,)), Task("m1-1", "w9", "w0", (5,))]
        lost, absent = carry_out(partitions, tasks)
    assert (lost.phase, lost.reason) == ("failed", "no progress after 3 attempts")
    assert (absent.phase, absent.reason) == ("failed", "there is no partition w9")
    assert_all_is_at_rest(folders)


def test_a_sample_is_in_one_hand_over_at_a_time(tmp_path):
    folders = three_partitions(tmp_path)
    with opened(folders) as partitions:
        first, second = carry_out(
            partitions, [Task("a", "w0", "w1", (0, 1)), Task("b", "w0", "w2", (1, 6))]
        )
    assert first.phase == "done"
    assert second.reason == "sample 1 must be in the index, and in no other hand-over"
    assert_all_is_at_rest(folders)


def test_names_that_could_leave_the_folder_are_refused(tmp_path):
    folders = three_partitions(tmp_path)
    with opened(folders) as partitions:
        (outcome,) = carry_out(partitions, [Task("../../x", "w0", "w1", (0,))])
    assert outcome.reason.startswith("a name of a hand-over must be 1 to 100 letters")
    assert_all_is_at_rest(folders)


def test_names_must_differ(tmp_path):
    with (
        opened(three_partitions(tmp_path)) as partitions,
        pytest.raises(InvalidSetting, match="different names"),
    ):
        carry_out(partitions, [Task("a", "w0", "w1", (0,))] * 2)


def crashing(monkeypatch, number, when):
    """Let the process end before or after its so-and-so-many-th durable write; count them."""
    writes = []

    def around(write):
        def wrapped(*args):
            writes.append(args)
            if len(writes) == number and when == "before":
                raise Crash
            write(*args)
            if len(writes) == number:
                raise Crash

        return wrapped

    monkeypatch.setattr(store, "write_index", around(write_index))
    monkeypatch.setattr(store, "write_rows", around(write_rows))
    return writes


NUM_WRITES = 9
"""Of this migration: offered, staging, 3 chunks, staged, given, adopted, settled."""


def test_the_number_of_writes_is_what_the_crashes_below_go_through(tmp_path, monkeypatch):
    writes = crashing(monkeypatch, 0, "after")
    migrate(three_partitions(tmp_path))
    assert len(writes) == NUM_WRITES


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("number", range(1, NUM_WRITES + 1))
@pytest.mark.parametrize("resume", [True, False])
def test_a_crash_at_every_write_loses_and_doubles_nothing(
    tmp_path, monkeypatch, number, when, resume
):
    folders = three_partitions(tmp_path)
    with monkeypatch.context() as patch, pytest.raises(Crash):
        crashing(patch, number, when)
        migrate(folders)
    assert_all_is_well(folders)

    with opened(folders) as partitions:
        tasks = open_tasks(partitions) if resume else ()
        outcome = carry_out(partitions, tasks)
    assert_all_is_at_rest(folders)
    written = number if when == "after" else number - 1
    given = written >= 7
    begun = written >= 1
    assert sizes(folders) == ([10, 20, 30] if given or (resume and begun) else [20, 20, 20])
    assert [task.phase for task in outcome] == (["done"] if resume and begun and not given else [])


def test_a_crash_of_the_recovery_is_recovered_from_too(tmp_path, monkeypatch):
    folders = three_partitions(tmp_path)

    def crashes(action):
        with monkeypatch.context() as patch, opened(folders) as partitions:
            writes = crashing(patch, 1, "after")
            with contextlib.suppress(Crash):
                action(partitions)
        assert_all_is_well(folders)
        return bool(writes)

    assert crashes(lambda ps: carry_out(ps, plan_tasks(ps, BATCH_SIZES, "m1", chunk_size=4)))
    attempts = 1
    while attempts <= NUM_WRITES and crashes(finish):
        attempts += 1
    assert attempts == NUM_WRITES
    assert sizes(folders) == [10, 20, 30]
    assert_all_is_at_rest(folders)


def test_nothing_is_planned_while_hand_overs_are_open(tmp_path, monkeypatch):
    folders = three_partitions(tmp_path)
    with monkeypatch.context() as patch, pytest.raises(Crash):
        crashing(patch, 7, "after")
        migrate(folders)
    with pytest.raises(InvalidSetting, match=r"w0 .* open .* got m1-0"):
        migrate(folders)


def test_what_is_there_already_is_not_sent_again(tmp_path, monkeypatch):
    folders = three_partitions(tmp_path)
    with monkeypatch.context() as patch, pytest.raises(Crash):
        crashing(patch, 4, "after")  # two of the three chunks are on disk
        migrate(folders)
    with opened(folders) as partitions:
        writes = crashing(monkeypatch, 0, "after")
        finish(partitions)
    assert len([args for args in writes if str(args[0]).endswith(".npy")]) == 1


def test_a_staged_chunk_that_is_damaged_meanwhile_is_sent_again(tmp_path, monkeypatch):
    folders = three_partitions(tmp_path)
    with monkeypatch.context() as patch, pytest.raises(Crash):
        crashing(patch, 4, "after")
        migrate(folders)
    path = folders[2] / "blocks" / "m1-0.000000.npy"
    octets = bytearray(path.read_bytes())
    octets[-5] ^= 1
    path.write_bytes(octets)
    with opened(folders) as partitions:
        (outcome,) = finish(partitions)
    assert outcome.phase == "done"
    assert_all_is_at_rest(folders)
