"""Cluster files: the meaning of a valid one, and the message for every mistake."""

import errno
import os
import re

import numpy as np
import pytest

from evenstep.core import UNLIMITED
from evenstep.errors import ClusterFileError, InvalidSetting
from evenstep.simulator.clusters.file import load_cluster

GOOD = """\
name = "mixed"
total = 128
iterations = 300
score_from = 20
policy = "proportional"
minimum = 2
granularity = 2
noise = { sigma = 0.03 }

[[workers]]
name = "cpu"
count = 2
speed = 50.0

[[workers]]
name = "gpu"
curve = { overhead = 0.2, per_sample = 0.01, saturation = 10 }
communication = 0.15
memory_cap = 64
noise = { spike_probability = 1.0, spike = [2.0, 2.0] }

[[workers]]
name = "measured"
table = "gpu.csv"
trace = { file = "trace.csv", repeat = 20 }
swap = { needed = 0.4, strength = 2.0 }

[[workers]]
name = "inline"
table = [[10, 0.1], [20, 0.3]]

[[changes]]
iteration = 200
workers = ["cpu-1", "gpu"]
slowdown = 2.0

[[changes]]
iteration = 100
workers = "cpu"
communication = 0.5
"""
GPU_CSV = "batch_size,seconds\n8,0.2\n16,0.4\n"
TRACE_CSV = "iteration,cpu,memory\n0,1.0,1.0\n10,0.5,0.2\n"
TOP = "samples_per_worker = 32\n"
WORKER = '[[workers]]\nname = "w"\nspeed = 60.0\n'


@pytest.fixture
def load(tmp_path, monkeypatch):
    """Writes a cluster file and its CSV files into an empty folder and loads it from there."""
    monkeypatch.chdir(tmp_path)

    def write_and_load(toml, csv=None, **settings):
        (tmp_path / "cluster.toml").write_text(toml, encoding="utf-8")
        for name, text in (csv or {}).items():
            (tmp_path / name).write_text(text, encoding="utf-8")
        return load_cluster("cluster.toml", **settings)

    return write_and_load


@pytest.fixture
def good(load):
    def load_good(**settings):
        return load(GOOD, {"gpu.csv": GPU_CSV, "trace.csv": TRACE_CSV}, **settings)

    return load_good


@pytest.fixture
def mistakes(load):
    def find_mistakes(toml, csv=None):
        with pytest.raises(ClusterFileError) as caught:
            load(toml, csv)
        return str(caught.value).splitlines()

    return find_mistakes


def test_the_top_of_a_good_file(good):
    cluster = good()
    assert cluster.name == "mixed"
    assert cluster.workers == ["cpu-0", "cpu-1", "gpu", "measured", "inline"]
    assert (cluster.total, cluster.iterations, cluster.score_from) == (128, 300, 20)
    assert (cluster.policy, cluster.minimum, cluster.granularity) == ("proportional", 2, 2)
    assert cluster.changes_at == 100
    assert cluster.cap.tolist() == [UNLIMITED, UNLIMITED, 64, UNLIMITED, UNLIMITED]


def test_bandwidth_is_that_of_the_file_and_otherwise_not_known(load):
    cluster = load(TOP + WORKER + WORKER.replace('"w"', '"x"') + "bandwidth = 1.25e9\n")
    np.testing.assert_array_equal(cluster.bandwidth, [np.nan, 1.25e9])


def test_times_in_a_good_file(good):
    cluster = good(noisy=False)
    sizes = np.full(5, 16)
    times = cluster.times(sizes, cluster.conditions(0, now=0.0))
    np.testing.assert_allclose(times, [0.32, 0.32, 0.15 + 0.36, 0.4, 0.22])


def test_a_trace_and_swap_in_a_good_file(good):
    at = good(noisy=False).conditions(30, now=0.0)
    assert at.cpu.tolist() == [1, 1, 1, 0.5, 1]
    assert at.memory.tolist() == [1, 1, 1, 0.2, 1]
    np.testing.assert_allclose(at.slowdown, [1, 1, 1, (1 + 2.0 * 0.5) / 0.5, 1])


def test_changes_in_a_good_file(good):
    cluster = good(noisy=False)
    before, between, after = (cluster.conditions(k, now=0.0) for k in (99, 100, 200))
    assert before.communication.tolist() == [0, 0, 0.15, 0, 0]
    assert between.communication.tolist() == [0.5, 0.5, 0.15, 0, 0]
    assert between.slowdown.tolist() == [1, 1, 1, 1, 1]
    assert after.communication.tolist() == [0.5, 0.5, 0.15, 0, 0]
    assert after.slowdown.tolist() == [1, 2, 2, 1, 1]


def test_a_workers_own_noise_replaces_the_one_at_the_top(good):
    noise = good().conditions(0, now=0.0).noise
    assert noise[2] == 2.0
    assert all(0.8 < factor < 1.2 and factor != 1 for factor in noise[[0, 1, 3, 4]])


def test_seeds_decide_the_noise_and_nothing_else_does(good):
    one, again, two = (good(seed=seed).conditions(7, now=0.0).noise for seed in (1, 1, 2))
    assert one.tolist() == again.tolist()
    assert one.tolist() != two.tolist()
    assert good(seed=1, noisy=False).conditions(7, now=0.0).noise.tolist() == [1] * 5


def test_iterations_given_override_those_of_the_file(good):
    assert good(iterations=50).iterations == 50
    with pytest.raises(InvalidSetting, match=r"iterations .*>= 1, got 0$"):
        good(iterations=0)


def test_missing_keys_have_defaults(load):
    cluster = load(TOP + WORKER)
    assert (cluster.name, cluster.workers, cluster.total) == ("cluster", ["w"], 32)
    assert (cluster.iterations, cluster.score_from, cluster.changes_at) == (500, 0, None)
    assert (cluster.policy, cluster.minimum, cluster.granularity) == ("equal_finish", 1, 1)
    at = cluster.conditions(0, now=0.0)
    assert (at.communication.item(), at.noise.item(), at.cpu.item()) == (0, 1, 1)


def test_csv_files_are_relative_to_the_cluster_file(tmp_path):
    folder = tmp_path / "elsewhere"
    (folder / "measured").mkdir(parents=True)
    (folder / "measured" / "gpu.csv").write_text(GPU_CSV)
    toml = TOP + '[[workers]]\nname = "w"\ntable = "measured/gpu.csv"\n'
    (folder / "cluster.toml").write_text(toml)
    cluster = load_cluster(folder / "cluster.toml")
    assert cluster.curves.times_at(np.array([16])).tolist() == [0.4]


def test_csv_may_have_comments_empty_lines_any_order_and_a_byte_order_mark(load):
    csv = '\ufeff# measured\r\nseconds, batch_size\r\n\r\n0.2, 8\r\n"0.4",16\r\n,\r\n'
    cluster = load(TOP + '[[workers]]\nname = "w"\ntable = "gpu.csv"\n', {"gpu.csv": csv})
    assert cluster.curves.times_at(np.array([16])).tolist() == [0.4]


def test_a_trace_over_seconds_with_memory_alone(load):
    toml = TOP + WORKER + 'trace = "t.csv"\n'
    cluster = load(toml, {"t.csv": "second,memory\n0,0.9\n2.5,0.4\n"})
    at = cluster.conditions(99, now=3.0)
    assert (at.cpu.item(), at.memory.item(), at.slowdown.item()) == (1.0, 0.4, 1.0)


def top(line):
    """A file with one more line at its top, the second."""
    return TOP + line + "\n" + WORKER


def worker(*lines):
    """A file with a second worker, whose own lines begin with the seventh."""
    return TOP + WORKER + '[[workers]]\nname = "v"\n' + "\n".join(lines) + "\n"


def change(*lines):
    """A file with a change, whose lines begin with the sixth."""
    return TOP + WORKER + "[[changes]]\n" + "\n".join(lines) + "\n"


AT_THE_TOP = [
    (top("iteratons = 5"), "2: iteratons is not a known key; did you mean 'iterations'?"),
    (
        top("zzz = 5"),
        "2: zzz is not a known key; known are name, total, samples_per_worker, iterations, "
        "score_from, policy, minimum, granularity, noise, workers, changes",
    ),
    (top('name = ""'), "2: name must be a text of printable characters, got ''"),
    (top("name = 5"), "2: name must be a text of printable characters, got 5"),
    (top('iterations = "500"'), "2: iterations must be a whole number, got '500'"),
    (top("iterations = true"), "2: iterations must be a whole number, got true"),
    (top("iterations = 1.5"), "2: iterations must be a whole number, got 1.5"),
    (top("iterations = 0"), "2: iterations must be >= 1, got 0"),
    (top("score_from = 500"), "2: score_from must be <= 499, got 500"),
    (top("minimum = -1"), "2: minimum must be >= 0, got -1"),
    (top("granularity = 0"), "2: granularity must be >= 1, got 0"),
    (
        top("granularity = 5"),
        "1: samples_per_worker: the total must be a multiple of the granularity 5, got 32",
    ),
    (
        top('policy = "evn"'),
        "2: policy must be one of even, static, proportional, cautious, stepwise, "
        "equal_finish, got 'evn'",
    ),
    (top('policy = "stepwise:step=-1"'), "2: policy: step of stepwise must be >= 1, got -1"),
    (top("total = 64"), " exactly one of total, samples_per_worker must be given, got both"),
    (WORKER, " exactly one of total, samples_per_worker must be given, got neither"),
    ("total = 0\n" + WORKER, "1: total must be >= 1, got 0"),
    ("total = 9e3\n" + WORKER, "1: total must be a whole number, got 9000.0"),
    (
        "total = 99999999999999999999\n" + WORKER,
        "1: total must be <= 1000000000000, got 99999999999999999999",
    ),
    (TOP, " workers must be given in at least one [[workers]] table"),
    ("workers = []\n" + TOP, "1: workers must be given in at least one [[workers]] table"),
    ("workers = 3\n" + TOP, "1: workers must be written as [[workers]] tables, got 3"),
    (
        TOP + "[workers]\nspeed = 60.0\n",
        "2: workers must be written as [[workers]] tables, got {'speed': 60.0}",
    ),
    (top("changes = [1]"), "2: changes must be written as [[changes]] tables, got [1]"),
    (top("noise = 0.03"), "2: noise must be a table, got 0.03"),
    (top("noise = {sigma = -1}"), "2: noise.sigma must be finite and >= 0, got -1.0"),
]
OF_WORKERS = [
    (TOP + WORKER + "[[workers]]\nspeed = 1\n", "5: workers[1].name is missing"),
    (
        worker("speed = 1", 'name_ = "x"'),
        "8: workers[1].name_ is not a known key; did you mean 'name'?",
    ),
    (
        worker("speed = 1", "count = 0"),
        "8: workers[1].count must be >= 1, got 0",
    ),
    (
        worker("speed = 1", "count = 10_000_000"),
        "8: workers[1].count must be <= 1000000, got 10000000",
    ),
    (TOP + WORKER * 2, "6: workers[1].name must differ from the others, but 'w' is already taken"),
    (
        TOP + WORKER + "count = 2\n" + WORKER.replace('"w"', '"w-1"'),
        "7: workers[1].name must differ from the others, but 'w-1' is already taken",
    ),
    (worker(), "5: workers[1]: exactly one of speed, curve and table must be given, got none"),
    (
        worker("speed = 1", "table = 'a.csv'"),
        "5: workers[1]: exactly one of speed, curve and table must be given, got speed and table",
    ),
    (worker("speed = -3"), "7: workers[1].speed must be finite and > 0, got -3.0"),
    (worker("speed = 0"), "7: workers[1].speed must be finite and > 0, got 0.0"),
    (worker("speed = nan"), "7: workers[1].speed must be finite, got nan"),
    (worker("speed = inf"), "7: workers[1].speed must be finite, got inf"),
    (worker("speed = '60'"), "7: workers[1].speed must be a number, got '60'"),
    (worker("speed = true"), "7: workers[1].speed must be a number, got true"),
    (worker("speed = [60]"), "7: workers[1].speed must be a number, got [60]"),
    (worker("speed = 1" + "0" * 400), f"7: workers[1].speed must be finite, got 1{'0' * 56}..."),
    (worker("curve = 3"), "7: workers[1].curve must be a table, got 3"),
    (worker("curve = {}"), "7: workers[1].curve.per_sample is missing"),
    (
        worker("[workers.curve]", "overhead = 0.1", "per_sample = -0.1"),
        "9: workers[1].curve.per_sample must be finite and > 0, got -0.1",
    ),
    (
        worker("curve = {per_sample = 0.1, overhead = -1}"),
        "7: workers[1].curve.overhead must be finite and leave every time > 0, got -1.0",
    ),
    (
        worker("curve = {per_sample = 0.1, saturated = 3}"),
        "7: workers[1].curve.saturated is not a known key; did you mean 'saturation'?",
    ),
    (worker("table = 3"), "7: workers[1].table must be a text of printable characters, got 3"),
    (
        worker("table = 'gone.csv'"),
        "7: workers[1].table must name an existing file, got 'gone.csv'",
    ),
    (worker("table = []"), "7: workers[1].table: a table must have at least 2 rows, got 0"),
    (
        worker("table = [", "  [1, 0.1],", "  [2],", "]"),
        "9: workers[1].table[1]: a row must be two numbers in brackets, got [2]",
    ),
    (
        worker("table = [", "  [1, 0.1],", "  [2, 'x'],", "]"),
        "9: workers[1].table[1]: a row must be a number, got 'x'",
    ),
    (
        worker("table = [", "  [1, 0.1],", "  [2, 0.2],", "  [2, 0.3]]"),
        "10: workers[1].table[2]: batch_size must rise from row to row, got 2",
    ),
    (
        worker("table = [[1, 0.3], [2, 0.2]]"),
        "7: workers[1].table: seconds must rise, got none above the first 0.3",
    ),
    (
        worker("speed = 1", "communication = -1"),
        "8: workers[1].communication must be >= 0, got -1.0",
    ),
    (
        worker("speed = 1", "bandwidth = 0"),
        "8: workers[1].bandwidth must be > 0, got 0.0",
    ),
    (
        worker("speed = 1", "communication = nan"),
        "8: workers[1].communication must be finite, got nan",
    ),
    (worker("speed = 1", "memory_cap = 0"), "8: workers[1].memory_cap must be >= 1, got 0"),
    (
        worker("speed = 1", "memory_cap = 1.5"),
        "8: workers[1].memory_cap must be a whole number, got 1.5",
    ),
    (
        worker("speed = 1", "noise = {sigma = true}"),
        "8: workers[1].noise.sigma must be a number, got true",
    ),
    (
        worker("speed = 1", "noise = {spike_probability = 2}"),
        "8: workers[1].noise.spike_probability must be from 0 to 1, got 2.0",
    ),
    (
        worker("speed = 1", "noise = {spike = 3}"),
        "8: workers[1].noise.spike must be two numbers in brackets, got 3",
    ),
    (
        worker("speed = 1", "noise = {spike = [3, 2]}"),
        "8: workers[1].noise.spike must be two factors > 0, the lower one first, got 3.0 and 2.0",
    ),
    (
        worker("speed = 1", "trace = 3"),
        "8: workers[1].trace must be the name of a file or a table, got 3",
    ),
    (
        worker("speed = 1", "trace = 'gone.csv'"),
        "8: workers[1].trace.file must name an existing file, got 'gone.csv'",
    ),
    (
        worker("speed = 1", "swap = {strength = 2}"),
        "8: workers[1].swap must come with a trace, which says how much memory is free",
    ),
    (
        worker("speed = 1", "swap = {strength = -2}", "trace = 't.csv'"),
        "8: workers[1].swap.strength must be finite and >= 0, got -2.0",
    ),
    (
        worker("speed = 1", "trace = {file = 't.csv', repeat = 10}"),
        "8: workers[1].trace.repeat must be after the last level begins (10), got 10.0",
    ),
]
OF_CHANGES = [
    (change("workers = 'w'", "slowdown = 2"), "5: changes[0].iteration is missing"),
    (change("iteration = 5", "slowdown = 2"), "5: changes[0].workers is missing"),
    (
        change("iteration = -5", "workers = 'w'", "slowdown = 2"),
        "6: changes[0].iteration must be >= 0, got -5",
    ),
    (
        change("iteration = 5", "workers = 'w'"),
        "5: changes[0]: a change must give communication, slowdown or both, got neither",
    ),
    (
        change("iteration = 5", "workers = 'ww'", "slowdown = 2"),
        "7: changes[0].workers must be names of workers, got 'ww'; did you mean 'w'?",
    ),
    (
        change("iteration = 5", "workers = ['w', 'gpu']", "slowdown = 2"),
        "7: changes[0].workers must be names of workers, got 'gpu'; known are w",
    ),
    (
        change("iteration = 5", "workers = []", "slowdown = 2"),
        "7: changes[0].workers must be a name or a list of names, got []",
    ),
    (
        change("iteration = 5", "workers = 0", "slowdown = 2"),
        "7: changes[0].workers must be a name or a list of names, got 0",
    ),
    (
        change("iteration = 5", "workers = [0]", "slowdown = 2"),
        "7: changes[0].workers must be a text of printable characters, got 0",
    ),
    (
        change("iteration = 5", "workers = 'w'", "slowdown = 0"),
        "8: changes[0].slowdown must be finite and > 0, got 0.0",
    ),
    (
        change("iteration = 5", "workers = 'w'", "communication = -1"),
        "8: changes[0].communication must be finite and >= 0, got -1.0",
    ),
]
OF_LIMITS = [
    (
        "total = 3\nminimum = 2\n" + WORKER + "count = 2\n",
        "1: total: the minimum batch sizes of 2 workers add up to 4, more than the total 3",
    ),
    (
        "minimum = 40\n" + TOP + WORKER,
        "2: samples_per_worker: the minimum batch sizes of 1 workers add up to 40, more than the "
        "total 32",
    ),
    (
        TOP + WORKER + "count = 2\nmemory_cap = 30\n",
        "1: samples_per_worker: the batch size caps of 2 workers add up to 60, less than the "
        "total 64",
    ),
    (
        TOP + "minimum = 3\ngranularity = 4\n" + WORKER + "memory_cap = 3\n",
        "7: workers[0].memory_cap must leave room for the smallest batch size 4, got 3",
    ),
]
IN_TABLES = [
    ("", " a header must name the columns, got an empty file"),
    ("size,seconds\n", "1: 'size' is not a known column; known are batch_size, seconds"),
    ("batch_sizes,seconds\n", "1: 'batch_sizes' is not a known column; did you mean 'batch_size'?"),
    (
        "batch_size;seconds\n1;2\n",
        "1: 'batch_size;seconds' is not a known column; did you mean 'batch_size'?",
    ),
    ("batch_size\n1\n", "1: columns must be batch_size,seconds, got batch_size"),
    ("seconds,batch_size,seconds\n", "1: every column must be named once, got seconds twice"),
    ("batch_size,seconds\n", "1: a table must have at least 2 rows, got 0"),
    (
        "batch_size,seconds\n1,0.1\n\n2\n",
        "4: a row must have 2 values (batch_size, seconds), got 1",
    ),
    ("# x\nbatch_size,seconds\n1,0.1\n2,fast\n", "4: seconds must be a number, got 'fast'"),
    ("batch_size,seconds\n1,0.1\n2,\n", "3: seconds must be a number, got ''"),
    ("batch_size,seconds\n1,0.1\n2,nan\n", "3: seconds must be finite, got nan"),
    ("batch_size,seconds\n1,0.1\n\n2,-0.2\n", "4: seconds must be finite and > 0, got -0.2"),
    ("batch_size,seconds\n1,0.1\n\n1,0.2\n", "4: batch_size must rise from row to row, got 1"),
    ("batch_size,seconds\n1,0.2\n2,0.1\n", "1: seconds must rise, got none above the first 0.2"),
]
TRACE_COLUMNS = "1: columns must be iteration or second, then cpu, memory or both, got "
IN_TRACES = [
    ("cpu,memory\n", TRACE_COLUMNS + "cpu,memory"),
    ("iteration\n0\n", TRACE_COLUMNS + "iteration"),
    ("iteration,second,cpu\n", TRACE_COLUMNS + "iteration,second,cpu"),
    ("iteration,cpu\n", "1: a trace must have at least one level, got none"),
    ("iteration,cpu\n5,1\n", "2: iteration must be 0 in the first row, got 5"),
    ("second,cpu\n0,1\n0,1\n", "3: second must rise from row to row, got 0"),
    ("second,cpu\n0,1\n1,85\n", "3: cpu must be a fraction above 0, up to 1, got 85"),
    ("second,cpu\n0,0\n", "2: cpu must be a fraction above 0, up to 1, got 0"),
    ("second,memory\n0,-0.1\n", "2: memory must be a fraction 0..1, got -0.1"),
]


@pytest.mark.parametrize(("toml", "message"), AT_THE_TOP + OF_WORKERS + OF_CHANGES + OF_LIMITS)
def test_a_mistake_is_reported_with_its_place(mistakes, toml, message):
    assert mistakes(toml, {"t.csv": TRACE_CSV}) == [f"cluster.toml:{message}"]


@pytest.mark.parametrize(("csv", "message"), IN_TABLES)
def test_a_mistake_in_a_measured_table_is_reported_with_its_place(mistakes, csv, message):
    assert mistakes(worker("table = 'gpu.csv'"), {"gpu.csv": csv}) == [f"gpu.csv:{message}"]


@pytest.mark.parametrize(("csv", "message"), IN_TRACES)
def test_a_mistake_in_a_trace_is_reported_with_its_place(mistakes, csv, message):
    toml = worker("speed = 1", "trace = 'trace.csv'")
    assert mistakes(toml, {"trace.csv": csv}) == [f"trace.csv:{message}"]


def test_swap_needs_to_know_the_memory(mistakes):
    toml = worker("speed = 1", "swap = {strength = 2}", "trace = 't.csv'")
    (mistake,) = mistakes(toml, {"t.csv": "second,cpu\n0,1\n"})
    place = re.escape("cluster.toml:9: workers[1].trace: ")
    assert re.fullmatch(place + r".*\bswap\b.*\bmemory column, got second,cpu", mistake)


def test_all_mistakes_are_reported_in_the_order_of_the_file(mistakes):
    toml = """\
samples_per_worker = 0
[[workers]]
name = "a"
sped = 3
table = "gpu.csv"
[[workers]]
name = "a"
speed = -3
noise = { sigma = "high" }
[[workers]]
name = "b"
table = "gpu.csv"
[[changes]]
iteration = -1
workers = "c"
"""
    assert mistakes(toml, {"gpu.csv": "batch_size,seconds\n1,0\n2,1\n"}) == [
        "cluster.toml:1: samples_per_worker must be >= 1, got 0",
        "gpu.csv:2: seconds must be finite and > 0, got 0",
        "cluster.toml:4: workers[0].sped is not a known key; did you mean 'speed'?",
        "cluster.toml:7: workers[1].name must differ from the others, but 'a' is already taken",
        "cluster.toml:8: workers[1].speed must be finite and > 0, got -3.0",
        "cluster.toml:9: workers[1].noise.sigma must be a number, got 'high'",
        "cluster.toml:15: changes[0].workers must be names of workers, got 'c'; known are a, b",
    ]


def test_a_key_of_the_top_below_a_header_is_told_where_it_belongs(mistakes):
    missing, misplaced = mistakes(WORKER + "total = 32\n")
    assert re.fullmatch(r"cluster\.toml: .*\btotal, samples_per_worker\b.*, got neither", missing)
    place = re.escape("cluster.toml:4: workers[0].total ")
    assert re.fullmatch(place + r"is not a known key; .*\babove\b.*", misplaced)


def test_a_missing_file_is_reported(tmp_path):
    with pytest.raises(ClusterFileError) as caught:
        load_cluster(tmp_path / "gone.toml")
    message = str(caught.value)
    assert message.startswith(f"{tmp_path / 'gone.toml'}: ")
    assert message.endswith(f": {os.strerror(errno.ENOENT)}")


def test_a_syntax_error_is_reported_with_its_line(mistakes):
    assert mistakes("total = 128\nworkers = ?\n") == [
        "cluster.toml:2: must be valid TOML: Invalid value (at line 2, column 11)"
    ]


@pytest.mark.parametrize("name", ["cluster.toml", "gpu.csv"])
def test_a_binary_file_is_reported(load, tmp_path, name):
    (tmp_path / "gpu.csv").write_text(GPU_CSV)
    (tmp_path / "cluster.toml").write_text(worker("table = 'gpu.csv'"))
    (tmp_path / name).write_bytes(b"# one\n\xff\xfe\n")
    with pytest.raises(ClusterFileError, match=rf"^{name}(:2)?: must be UTF-8 text: "):
        load_cluster("cluster.toml")


def test_a_file_of_a_thousand_groups_with_traces_loads_and_runs(load):
    groups = "".join(
        f'[[workers]]\nname = "w{i}"\nspeed = 60.0\ntrace = "t.csv"\n' for i in range(1000)
    )
    cluster = load(TOP + groups, {"t.csv": TRACE_CSV})
    at = cluster.conditions(10, now=0.0)
    assert at.slowdown.tolist() == [2.0] * 1000
    assert cluster.optimum(at).tolist() == [32] * 1000
