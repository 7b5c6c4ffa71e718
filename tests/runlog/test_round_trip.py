"""What is written can be read, and is what was written."""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenstep.core import UNLIMITED
from evenstep.runlog import QUANTITIES, Event, RunLogParser, RunLogWriter, read
from tests.runlog.examples import full_row, header, row, text_of

NAMES = st.text(min_size=1, max_size=20)
COUNTS = st.integers(0, 2**53)
MEASURES = st.floats(allow_nan=True, allow_infinity=True)


def parse(text):
    parser = RunLogParser()
    records = parser.feed(text)
    assert not parser.cut
    return records


def test_read_returns_what_was_written(tmp_path):
    path = tmp_path / "run.jsonl"
    rows = [full_row(k, num_workers=3) for k in range(200)]
    head = header(workers=["a", "b", "c"], seed=7, created="2026-01-02T03:04:05Z",
                  settings={"delay": 1, "note": "x"})  # fmt: skip
    with RunLogWriter(path, head) as log:
        for each in rows:
            log.iteration(each)
        log.event(Event("end", 200, reason="done"))
    run_log = read(path)
    [segment] = run_log.segments
    assert run_log.header == head
    assert run_log.events == (Event("end", 200, reason="done"),)
    assert (run_log.complete, run_log.ended, run_log.num_iterations) == (True, True, 200)
    assert segment.iterations.tolist() == list(range(200))
    assert segment.plans.tolist() == [k // 10 for k in range(200)]
    for name in QUANTITIES:
        written = np.array([getattr(each, name) for each in rows])
        digits = 1e-3 if name in ("cpu", "memory", "device_memory") else 1e-6
        np.testing.assert_allclose(getattr(segment, name), written, rtol=digits)


def test_actual_speeds_and_iteration_times_are_derived(tmp_path):
    path = tmp_path / "run.jsonl"
    path.write_text(text_of(header(), row(times=(0.2, 0.3), waiting=(0.15, 0.05))))
    [segment] = read(path).segments
    np.testing.assert_allclose(segment.speeds, [[40, 80]])
    np.testing.assert_allclose(segment.iteration_times, [0.35])


def test_a_benched_worker_has_no_time_and_no_speed():
    [_, got] = parse(text_of(header(), row(batch_sizes=[32, 0], times=[0.5, math.nan])))
    assert got.batch_sizes.tolist() == [32, 0]
    np.testing.assert_array_equal(got.speeds, [64, np.nan])


def test_what_is_not_finite_is_written_as_null():
    text = text_of(
        header(settings={"rate": math.nan, "most": [math.inf]}),
        row(times=[math.nan, 0.5], waiting=[math.inf, -math.inf], start=math.nan),
        Event("advice", 1, advice="remove", worker="w0", predicted_time=math.nan),
    )
    for line in text.splitlines():
        json.loads(line, parse_constant=pytest.fail)
    head, got, advice = parse(text)
    assert head.settings == {"rate": None, "most": [None]}
    assert math.isnan(got.start)
    np.testing.assert_array_equal(got.times, [np.nan, 0.5])
    assert got.waiting is None
    assert advice.predicted_time is None


def test_what_is_unknown_of_all_workers_takes_no_room():
    unknown = np.full(2, np.nan)
    line = text_of(header(), row(cpu=unknown, caps=np.full(2, UNLIMITED))).splitlines()[1]
    assert list(json.loads(line)) == ["iteration", "plan", "start", "batch_sizes", "times"]


def test_a_worker_without_a_cap_has_none_again():
    [_, got] = parse(text_of(header(), row(caps=[64, UNLIMITED])))
    assert got.caps.tolist() == [64, UNLIMITED]


def test_settings_of_other_types_are_written_as_well_as_can_be(tmp_path):
    settings = {"n": np.int64(3), "xs": np.arange(2), "path": tmp_path, 4: (1.5, None, True)}
    [head] = parse(text_of(header(settings=settings)))
    assert head.settings == {"n": 3, "xs": [0, 1], "path": str(tmp_path), "4": [1.5, None, True]}


@pytest.mark.parametrize(
    "name",
    ["a\nb", 'quo"te', "back\\slash", "\x00", "\ud800", "\u2028", "名前", "</script>", " ", "nan"],
)
def test_any_name_comes_back_and_every_line_is_one_line(name):
    text = text_of(header(workers=[name, "other"]), row(), Event("note", 1, text=name))
    assert text.isascii() and len(text.split("\n")) == 4
    head, _, note = parse(text)
    assert (head.workers, note.text) == ((name, "other"), name)


@given(st.data())
def test_any_row_comes_back(data):
    num_workers = data.draw(st.integers(1, 5))
    counts = st.lists(COUNTS, min_size=num_workers, max_size=num_workers)
    measures = st.lists(MEASURES, min_size=num_workers, max_size=num_workers)
    names = data.draw(st.lists(NAMES, min_size=num_workers, max_size=num_workers, unique=True))
    k, plan, x, caps = (data.draw(each) for each in (COUNTS, COUNTS, counts, counts))
    t, waiting = data.draw(measures), data.draw(measures)
    head, got = parse(
        text_of(header(workers=names), row(k, x, t, plan=plan, waiting=waiting, caps=caps))
    )
    assert head.workers == tuple(names)
    assert (got.iteration, got.plan, got.batch_sizes.tolist()) == (k, plan, x)
    assert caps == ([UNLIMITED] * num_workers if got.caps is None else got.caps.tolist())
    for written, read_again in ((t, got.times), (waiting, got.waiting)):
        known = np.where(np.isfinite(written), written, np.nan)
        values = np.full(num_workers, np.nan) if read_again is None else read_again
        np.testing.assert_allclose(values, known, rtol=1e-6, atol=1e-300)


@given(
    st.builds(
        Event,
        kind=st.sampled_from(["note", "end"]),
        iteration=COUNTS,
        text=st.text(),
        reason=st.none() | st.text(),
        predicted_time=st.none() | st.integers(0, 10**6).map(float),
    )
)
def test_any_event_comes_back(event):
    assert parse(text_of(header(), event))[1:] == [event]


def test_every_kind_of_event_comes_back():
    events = [
        Event("plan", 0, plan=0, batch_sizes=(8, 24), predicted_time=0.5, reason="first"),
        Event("proposal", 3, batch_sizes=(10, 22), reason="would be faster"),
        Event("phase", 4, phase="fine-tune"),
        Event("advice", 5, advice="remove", worker="w1", predicted_time=0.25),
        Event("limit", 6, worker="w1", cap=64, reason="out of memory"),
        Event("join", 7, worker="w2", workers=("w0", "w1", "w2")),
        Event("leave", 8, worker="w0", workers=("w1", "w2")),
        Event("note", 9, text="hello"),
        Event("end", 10),
    ]
    assert parse(text_of(header(), *events))[1:] == events
