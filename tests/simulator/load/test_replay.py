"""Replays: levels over time, and traces from files."""

import numpy as np
import pytest

from evenstep.errors import ClusterFileError, InvalidSetting
from evenstep.simulator.clusters.fake_tasks import FakeTasks
from evenstep.simulator.clusters.traces import Trace
from evenstep.simulator.load.replay import Level, read_trace, replay

TRACE = Trace(
    np.array([0.0, 10.0]), np.array([0.75, 0.5]), np.array([1.0, 0.25]), "second", repeat=30
)


def test_levels_hold_the_taken_shares_and_follow_each_other():
    assert list(replay(TRACE, speedup=10)) == [
        Level(second=0, start=0, end=1, cpu=0.25, memory=0),
        Level(second=10, start=1, end=3, cpu=0.5, memory=0.75),
    ]


def test_a_longer_replay_repeats_and_a_shorter_one_is_cut():
    spans = [(level.second, level.start, level.end) for level in replay(TRACE, duration=35)]
    assert spans == [(0, 0, 10), (10, 10, 30), (0, 30, 35)]
    assert [level.end for level in replay(TRACE, duration=5)] == [5]


def test_a_trace_without_an_end_needs_a_duration():
    trace = Trace(np.zeros(1), np.full(1, 0.5), np.ones(1), "second")
    assert [level.end for level in replay(trace, duration=7)] == [7]
    with pytest.raises(InvalidSetting, match=r"\bduration\b.*, got none$"):
        list(replay(trace))


def test_tasks_add_up_and_leave_a_little():
    tasks = FakeTasks(
        start=np.array([0.0, 5.0]), end=np.array([10.0, 8.0]),
        cpu=np.array([0.5, 0.75]), memory=np.array([0.75, 0.5]),
    )  # fmt: skip
    trace = tasks.trace(repeat=10)
    assert trace.at.tolist() == [0, 5, 8]
    assert trace.cpu.tolist() == [0.5, 0.05, 0.5]
    assert trace.memory.tolist() == [0.25, 0, 0.25]


def write(tmp_path, text):
    path = tmp_path / "trace.csv"
    path.write_text(text)
    return str(path)


def test_a_file_of_tasks(tmp_path):
    trace = read_trace(write(tmp_path, "start,end,cpu,memory\n0,20,0.25,0.5\n10,40,0.5,0.25\n"))
    assert trace.repeat == 40
    assert trace.at.tolist() == [0, 10, 20]
    assert trace.cpu.tolist() == [0.75, 0.25, 0.5]


def test_a_file_of_levels(tmp_path):
    trace = read_trace(write(tmp_path, "second,cpu,memory\n0,1.0,0.5\n10,0.5,0.25\n"))
    assert (trace.cpu.tolist(), trace.memory.tolist()) == ([1, 0.5], [0.5, 0.25])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("start,end,cpu,memory\n0,9,2,0\n", "{}:2: cpu must be a fraction 0..1, got 2"),
        ("start,end,cpu,memory\n0,9,1,0\n5,5,1,0\n", "{}:3: end must be after start, got 5"),
        ("start,end,cpu,memory\n-1,5,1,0\n", "{}:2: start must be >= 0, got -1"),
        ("start,end,cpu,memory\n0,x,1,0\n", "{}:2: end must be a number, got 'x'"),
        ("start,end,cpu,memory\n", "{}:1: there must be at least one task, got none"),
        ("start,end,cpu\n0,1,1\n", "{}:1: columns must be start,end,cpu,memory, got start,end,cpu"),
        ("second,cpu\n5,1\n", "{}:2: second must be 0 in the first row, got 5"),
        ("iteration,cpu\n0,1\n", "{}:1: a load needs a trace over seconds, got iteration,cpu"),
        ("begin,end\n0,1\n", "{}:1: 'begin' is not a known column"),
        ("", "{}: a header must name the columns, got an empty file"),
    ],
)
def test_a_mistake_is_reported_with_its_line(tmp_path, text, message):
    path = write(tmp_path, text)
    with pytest.raises(ClusterFileError) as caught:
        read_trace(path)
    assert str(caught.value).startswith(message.format(path))


def test_workers_go_with_cluster_b(tmp_path):
    assert read_trace("B:usage", "m4.xlarge").repeat == 3600
    with pytest.raises(InvalidSetting, match=r"B:usage .*\bevery worker\b"):
        read_trace("B:usage")
    with pytest.raises(InvalidSetting, match="a worker goes with B:usage or B:tasks, got 'x'"):
        read_trace(write(tmp_path, "second,cpu\n0,1\n"), "x")
    with pytest.raises(ClusterFileError, match=r"gone: .*: No such file"):
        read_trace("gone")
