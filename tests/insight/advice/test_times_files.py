"""Times from elsewhere: tables, traces of the PyTorch profiler, logs of straggler detection."""

import gzip
import json
import re

import numpy as np
import pytest

from evenstep.errors import DataFileError, InvalidSetting
from evenstep.insight.advice import advise, read_times

TABLE = "worker,iteration,batch_size,seconds\n" + "".join(
    f"{worker},{k},{size},{seconds}\n"
    for k in range(4)
    for worker, size, seconds in (("a", 8, 0.1), ("b", 16, 0.4))
)
REPORT = """2026-01-01 INFO step 100
GPU relative performance:
  Rank=1 Node=n1 Score=0.50
  Rank=0 Node=n0 Score=1.00

GPU individual performance:
  Rank=1 Node=n1 Score=0.10
  Rank=0 Node=n0 Score=1.00
Straggler report processing time: 0.004 sec.
"""


@pytest.fixture
def write(tmp_path):
    def write(text, name="times.csv"):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


def span(name, start, duration, cat="user_annotation"):
    return {"ph": "X", "cat": cat, "name": name, "ts": 1e6 + start, "dur": duration}


def trace(rank, work, steps=(2, 3, 4)):
    """A trace whose steps of 100 ms are `work` ms of work, and then waiting in an all-reduce."""
    events: list[object] = [{"ph": "M", "name": "process_name"}, "what is this"]
    for place, k in enumerate(steps):
        start = place * 100_000
        events += [
            span(f"ProfilerStep#{k}", start, 100_000),
            span("aten::mm", start, work * 1000, cat="cpu_op"),
            # It begins while there is work to do, and that much of it is not waiting.
            span("gloo:all_reduce", start + work * 500, 100_000 - work * 500),
        ]
    return json.dumps({"traceEvents": events, "distributedInfo": {"rank": rank}})


def test_table_has_sizes_times_and_total(write):
    seen = read_times([write(TABLE)])
    assert seen.workers == ["a", "b"] and seen.total == 24
    assert seen.times.tolist() == [[0.1, 0.4]] * 4
    assert seen.sizes.tolist() == [[8, 16]] * 4


def test_lines_of_a_table_may_end_as_they_do_anywhere(write):
    for end in ("\r\n", "\r"):
        assert read_times([write(TABLE.replace("\n", end))]).times.tolist() == [[0.1, 0.4]] * 4


def test_columns_may_come_in_any_order_with_others_between_and_rows_missing(write):
    lines = ["seconds, iteration ,host,worker,batch_size"]
    lines += [f"0.{w},{k},h,{w},8" for w in (1, 2) for k in range(5) if (w, k) != (2, 0)]
    seen = read_times([write("\n".join(lines))])
    assert seen.workers == ["1", "2"] and seen.total == 16
    assert np.isnan(seen.times[0, 1]) and seen.times[1:, 1].tolist() == [0.2] * 4


def test_duplicate_rows_are_dropped_and_counted(write):
    seen = read_times([write(TABLE + "a,3,8,0.7\nb,0,16,0.4\n")])
    assert seen.times.tolist() == [[0.1, 0.4]] * 3 + [[0.7, 0.4]]
    assert seen.remarks == (
        "Dropped 2 duplicate rows: of several rows of a worker in one iteration, the last counts.",
    )


def test_missing_rows_are_unknown_times_and_no_idle_workers(write):
    lines = [f"{w},{k},{8 * w},0.{w}" for k in range(40) for w in (1, 2) if k % 9 or w == 1]
    text = "\n".join(["worker,iteration,batch_size,seconds", *lines])
    seen = read_times([write(text)])
    assert seen.sizes.tolist() == [[8, 16]] * 40
    assert np.isnan(seen.times[::9, 1]).all() and np.isnan(seen.times).sum() == 5
    assert seen.total == 24
    assert [remark.split(":")[0] for remark in seen.remarks] == ["5 of 80 rows are missing"]
    # Warnings are errors: the advice computes with the known times alone.
    advice = advise(seen)
    assert advice.plain.value == pytest.approx(0.15, rel=0.1)


def test_table_without_sizes_takes_them_from_the_user(write):
    text = "worker,iteration,seconds\n" + "".join(f"{w},{k},0.1\n" for w in "ab" for k in range(3))
    assert read_times([write(text)], [8, 24]).total == 32
    with pytest.raises(DataFileError, match=r"columns.* worker.* batch_size"):
        read_times([write(text)])


def test_traces_give_steps_without_exposed_collectives(write):
    paths = [write(trace(1, work=80), "b.json"), write(trace(0, work=20), "a.json")]
    seen = read_times(paths, [32])
    assert seen.workers == ["rank 0", "rank 1"] and seen.total == 64
    assert seen.times == pytest.approx(np.array([[0.02, 0.08]] * 3))
    assert "only collectives" in seen.remarks[0] and len(seen.remarks) == 1


def test_traces_may_be_compressed_and_cover_different_steps(write):
    zipped = gzip.compress(trace(1, work=80, steps=(3, 4, 5, 6)).encode())
    paths = [write(zipped, "b.json.gz"), write(trace(0, work=20, steps=(2, 3, 4, 5)), "a.json")]
    assert read_times(paths, [32]).times == pytest.approx(np.array([[0.02, 0.08]] * 3))


def test_trace_without_collectives_is_told(write):
    events = [span(f"ProfilerStep#{k}", k * 1000, 900) for k in range(3)]
    paths = [write(json.dumps({"traceEvents": events}), f"{name}.json") for name in "ab"]
    seen = read_times(paths, [32])
    assert seen.workers == ["a", "b"]
    assert re.search(r"trace of a, b .*no collectives", seen.remarks[1])


def test_kernels_of_a_device_hide_collectives_and_operations_of_its_host_do_not(write):
    def made(rank):
        events = []
        for k in range(3):
            events += [
                span(f"ProfilerStep#{k}", k * 1000, 1000),
                span("aten::mm", k * 1000, 1000, cat="cpu_op"),
                span("sgemm", k * 1000, 300, cat="kernel"),
                span("ncclDevKernel_AllReduce_Sum_f32", k * 1000 + 200, 700, cat="kernel"),
            ]
        return json.dumps({"traceEvents": events, "distributedInfo": {"rank": rank}})

    seen = read_times([write(made(rank), f"{rank}.json") for rank in range(2)], [8])
    assert seen.times == pytest.approx(np.full((3, 2), 400e-6))


def test_straggler_log_gives_relative_times(write):
    seen = read_times([write(REPORT * 3, "train.log")], [32])
    assert seen.relative and seen.workers == ["rank 0", "rank 1"]
    assert seen.times == pytest.approx(np.array([[0.5, 1.0]] * 3))


def test_a_score_may_end_a_sentence(write):
    seen = read_times([write(REPORT.replace("0.50", "0.50."))], [8])
    assert seen.times[0].tolist() == [0.5, 1.0]


def test_one_straggler_report_is_enough_and_unlisted_ranks_are_told(write):
    text = """GPU relative performance:
 Worst performing 1/8 ranks:
  Rank=5 Node=n1 Score=0.50
 Best performing 1/8 ranks:
  Rank=2 Node=n0 Score=1.00
"""
    seen = read_times([write(text, "train.log")], [32])
    assert seen.num_workers == 8 and seen.total == 256
    assert seen.times[0, [2, 5, 0]] == pytest.approx([0.5, 1.0, 0.5 / 0.75])
    assert "6 of 8 ranks are in no report" in seen.remarks[1]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("a,9,8,-1", "line 10: seconds must be a number > 0, got '-1'"),
        ("a,9,8,nan", "seconds must be a number > 0, got 'nan'"),
        ("a,9.5,8,1", "iteration must be a whole number >= 0, got '9.5'"),
        ("a,9,x,1", "batch_size must be a number >= 0, got 'x'"),
        ("a,9", "batch_size must be a number >= 0, got None"),
        (",9,8,1", "worker must be a name, got ''"),
    ],
)
def test_mistakes_in_a_table_are_named_with_their_place(write, line, message):
    with pytest.raises(DataFileError) as error:
        read_times([write(TABLE + line + "\n")])
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["what is this?"], "must have the columns"),
        ([b"\xff\xfe"], "must be text in UTF-8"),
        (["{"], "a trace must be JSON"),
        (["{}"], "must have traceEvents"),
        (['{"traceEvents": []}'], "must have ProfilerStep"),
        ([trace(0, 20), trace(0, 30)], "one trace, got two of rank 0"),
        ([TABLE, TABLE], "must all be traces"),
        ([REPORT.replace("0.50", "1.50")], "above 0, up to 1, got 1.5 for 1"),
        ([REPORT.replace("Rank=1 ", f"Rank={'1' * 18} ")], "at most 100000 ranks"),
        ([TABLE + "a" * 200_000 + ",9,8,1\n"], "must be CSV (field larger than"),
        ([gzip.compress(b"")[:10] + b"\x07" + b"\0" * 20], "must be text in UTF-8"),
    ],
)
def test_what_cannot_be_read_is_refused(write, texts, message):
    paths = [write(text, f"{i}") for i, text in enumerate(texts)]
    with pytest.raises((DataFileError, InvalidSetting)) as error:
        read_times(paths, None if texts == ["what is this?"] else [8])
    assert message in str(error.value)


@pytest.mark.parametrize("text", [trace(0, 20), REPORT])
def test_sizes_that_nobody_knows_are_asked_for(write, text):
    with pytest.raises(InvalidSetting, match="does not say batch sizes: give them"):
        read_times([write(text)])
