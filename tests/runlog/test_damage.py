"""A run log that grows, is cut, damaged, or none at all."""

import json
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from evenstep.errors import RunLogError
from evenstep.runlog import Event, Header, RunLogParser, read
from tests.runlog.examples import full_row, header, row, text_of

TEXT = text_of(header(), *(full_row(k, num_workers=2) for k in range(5)), Event("end", 5))
LINES = TEXT.splitlines(keepends=True)


def with_line(number, change):
    """Return the text with one line's JSON object changed; the header is line 1."""
    lines = list(LINES)
    data = json.loads(lines[number - 1])
    change(data)
    lines[number - 1] = json.dumps(data) + "\n"
    return "".join(lines)


def write(tmp_path, text):
    path = tmp_path / "run.jsonl"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_a_cut_last_line_is_left_out_and_told(tmp_path):
    run_log = read(write(tmp_path, "".join(LINES[:4]) + LINES[4][:-10]))
    assert (run_log.complete, run_log.ended, run_log.num_iterations) == (False, False, 3)


def test_a_last_line_that_lacks_only_its_end_is_read(tmp_path):
    run_log = read(write(tmp_path, TEXT.rstrip("\n")))
    assert (run_log.complete, run_log.ended, run_log.num_iterations) == (True, True, 5)


def test_zeros_after_a_power_failure_are_a_cut_line(tmp_path):
    run_log = read(write(tmp_path, LINES[0] + LINES[1] + "\0" * 100))
    assert (run_log.complete, run_log.num_iterations) == (False, 1)


def test_a_run_log_without_iterations_can_be_read(tmp_path):
    run_log = read(write(tmp_path, LINES[0]))
    assert (run_log.segments, run_log.events, run_log.complete) == ((), (), True)
    assert run_log.matrix("times").shape == (0, 2)


@given(st.lists(st.integers(0, len(TEXT)), max_size=20))
def test_the_parser_takes_the_text_in_any_pieces(cuts):
    parser = RunLogParser()
    edges = [0, *sorted(cuts), len(TEXT)]
    records = [record for start, end in pairwise(edges) for record in parser.feed(TEXT[start:end])]
    assert len(records) == len(LINES)
    assert isinstance(records[0], Header)
    assert not parser.cut


def test_a_file_can_be_followed_while_it_grows(tmp_path):
    path, parser, seen = write(tmp_path, ""), RunLogParser(), []
    with path.open("rb") as reading, path.open("ab", buffering=0) as writing:
        for line in LINES:
            writing.write(line[:7].encode())
            assert parser.feed(reading.read()) == []
            assert parser.cut
            writing.write(line[7:].encode())
            seen += parser.feed(reading.read())
    assert len(seen) == len(LINES)


def test_letters_of_several_bytes_may_be_cut_anywhere():
    line = LINES[0].replace("w0", "名").encode()
    parser = RunLogParser()
    for i in range(len(line)):
        parser.feed(line[i : i + 1])
    assert parser.workers == ("名", "w1")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (LINES[0] + LINES[1][:-10] + "\n" + LINES[2], "line 2: a line must be a JSON object"),
        (LINES[0] + LINES[1] + "\0\0\0\n" + LINES[2], "line 3: a line must be a JSON object"),
        (LINES[0] + '{"iteration":0,"times":[NaN,1]}\n', "line 2: .*NaN is not JSON"),
        (LINES[0] + "[" * 10**5 + "\n", "line 2: a line must be a JSON object"),
        (LINES[0] + "7\n", "line 2: a line must be a JSON object, got 7"),
        (LINES[0] + LINES[2] + LINES[1], "line 3: iteration must rise, got 0 after 1"),
        (LINES[0] + LINES[0], "line 2: an iteration must have batch_sizes"),
    ],
)
def test_damage_in_the_middle_is_an_error_with_the_line(tmp_path, text, message):
    with pytest.raises(RunLogError, match=message):
        read(write(tmp_path, text))


def test_bytes_that_are_no_text_are_an_error_with_the_line(tmp_path):
    with pytest.raises(RunLogError, match="line 2"):
        read(write(tmp_path, LINES[0].encode() + b'{"iteration":"\xff"}\n'))


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("iteration", "3", "iteration must be an integer"),
        ("iteration", -1, "iteration must be an integer"),
        ("iteration", True, "iteration must be an integer"),
        ("iteration", 2**64, "iteration must be an integer"),
        ("plan", 1.5, "plan must be an integer"),
        ("start", "soon", "start must be a finite number"),
        ("batch_sizes", None, "an iteration must have batch_sizes"),
        ("batch_sizes", 8, r"batch_sizes must be a list with one entry per worker \(2\), got 8"),
        ("batch_sizes", [8], r"one entry per worker \(2\), got 1 entries"),
        ("batch_sizes", [8, -5], "batch_sizes of worker 'w1' must be an integer .*, got -5"),
        ("batch_sizes", [8, 2.5], "batch_sizes of worker 'w1' must be an integer .*, got 2.5"),
        ("batch_sizes", [8, None], "batch_sizes of worker 'w1' must be an integer .*, got None"),
        ("batch_sizes", [10**30, 1], "batch_sizes of worker 'w0' must be an integer"),
        ("times", ["0.5", 1], "times of worker 'w0' must be a finite number, got '0.5'"),
        ("times", [0.5, True], "times of worker 'w1' must be a finite number, got True"),
        ("times", [0.5, [1]], "times of worker 'w1' must be a finite number"),
        ("times", [0.5, 10**400], "times of worker 'w1' must be a finite number"),
        ("cpu", {"w0": 1}, "cpu must be a list with one entry per worker"),
        ("caps", [-1, 5], "caps of worker 'w0' must be an integer"),
    ],
)
def test_a_wrong_value_in_a_row_is_an_error_that_names_it(key, value, message):
    parser = RunLogParser()
    parser.feed(LINES[0] + LINES[1])
    with pytest.raises(RunLogError, match="line 3: .*" + message):
        parser.feed(with_line(3, lambda data: data.update({key: value})).splitlines()[2] + "\n")


def test_a_number_beyond_all_floats_is_an_error():
    parser = RunLogParser()
    parser.feed(LINES[0])
    with pytest.raises(RunLogError, match=r"line 2: times of worker 'w1' .*finite.*, got inf$"):
        parser.feed('{"iteration":0,"plan":0,"batch_sizes":[1,2],"times":[1,1e999]}\n')


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ({"event": 7, "iteration": 1}, "event must be a non-empty string, got 7"),
        ({"event": ["end"], "iteration": 1}, "event must be a non-empty string"),
        ({"event": "end"}, "iteration must be there"),
        ({"event": "phase", "iteration": 1}, "phase of a 'phase' event must be"),
        ({"event": "note", "iteration": 1, "text": {}}, "text of a 'note' event must be a string"),
        ({"event": "plan", "iteration": 1, "plan": 1, "batch_sizes": [1]}, "got 1 entries"),
        ({"event": "join", "iteration": 1, "worker": "w2", "workers": "w2"}, "workers of a 'join'"),
        ({"event": "join", "iteration": 1, "worker": "w2", "workers": ["w2", 3]}, "workers of a"),
        ({"event": "join", "iteration": 1, "worker": "w2", "workers": ["w0"]}, "those after it"),
        ({"event": "leave", "iteration": 1, "worker": "w0", "workers": ["w0"]}, "those after it"),
        ({"event": "note", "iteration": 1, "text": "", "workers": ["w0"]}, "only a 'join'"),
    ],
)
def test_a_wrong_event_is_an_error_that_says_why(line, message):
    parser = RunLogParser()
    parser.feed(LINES[0])
    with pytest.raises(RunLogError, match=message):
        parser.feed(json.dumps(line) + "\n")


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("evenstep_run_log", 2, "version of a run log must be 1, got 2"),
        ("evenstep_run_log", "1", "version of a run log must be 1, got '1'"),
        ("evenstep_run_log", True, "version of a run log must be 1, got True"),
        ("source", "guessed", "source must be one of 'measured', 'emulated', 'simulated'"),
        ("workers", [], "at least 1 worker"),
        ("workers", ["a", "a"], "workers must be a list of different non-empty strings"),
        ("workers", ["a", ""], "workers must be a list of different non-empty strings"),
        ("workers", "ab", "workers must be a list of different non-empty strings"),
        ("total", -1, "total must be an integer"),
        ("settings", [], "settings must be a dict"),
        ("seed", 1.5, "seed must be an integer"),
    ],
)
def test_a_wrong_header_is_an_error_that_says_why(key, value, message):
    with pytest.raises(RunLogError, match=f"line 1: .*{message}"):
        RunLogParser().feed(with_line(1, lambda data: data.update({key: value})))


@pytest.mark.parametrize("text", ["", "\n\n", LINES[0][:40]])
def test_a_file_without_a_whole_header_is_an_error(tmp_path, text):
    with pytest.raises(RunLogError, match=r"run\.jsonl.*\bheader\b"):
        read(write(tmp_path, text))


@pytest.mark.parametrize(
    "text", ["a,b\n1,2\n", '{"a": 1}\n', "hello", b"\x89PNG\r\n\x1a\n\0\0", b"\x00" * 5000]
)
def test_a_foreign_file_is_an_error(tmp_path, text):
    with pytest.raises(RunLogError, match=r"run\.jsonl, line 1: a (line|run log) must b"):
        read(write(tmp_path, text))


def test_records_before_the_damage_are_not_lost():
    parser = RunLogParser()
    assert len(parser.feed("".join(LINES[:3]) + "damage\n" + LINES[3])) == 3
    for _ in range(2):
        with pytest.raises(RunLogError, match="line 4"):
            parser.feed(LINES[3])


def test_events_and_fields_of_newer_versions_are_passed_over():
    extended = with_line(2, lambda data: data.update(colour=["red", "blue"]))
    records = RunLogParser().feed(extended + '{"event":"eclipse","iteration":6}\n')
    assert len(records) == len(LINES)


@given(st.text() | st.binary())
@example('{"evenstep_run_log":1}\n')
@example("null\n")
def test_any_text_after_the_header_is_read_or_refused(text):
    parser = RunLogParser()
    parser.feed(LINES[0])
    try:
        parser.feed(text)
        parser.finish()
    except RunLogError:
        pass


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=6,
)


@given(st.sampled_from(range(1, len(LINES) + 1)), st.data())
def test_any_value_in_any_place_is_read_or_refused(number, data):
    keys = list(json.loads(LINES[number - 1]))
    key, value = data.draw(st.sampled_from(keys)), data.draw(_JSON)
    parser = RunLogParser()
    try:
        parser.feed(with_line(number, lambda fields: fields.update({key: value})))
        parser.finish()
    except RunLogError as error:
        assert f"line {number}" in str(error) or key in ("iteration", "workers")


def test_a_log_may_leave_iterations_out(tmp_path):
    text = text_of(header(), row(3), row(10))
    assert read(write(tmp_path, text)).iterations.tolist() == [3, 10]
