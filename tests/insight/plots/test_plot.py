"""The plot can be drawn of any run log."""

import json
import re
import subprocess
import sys
from math import nan
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.figure import Figure

from evenstep.cli.main import main
from evenstep.errors import InvalidSetting
from evenstep.insight.plots import panels
from evenstep.insight.plots.plot import Answer, plot
from evenstep.insight.plots.plot_data import LONG, Numbers, Picture
from evenstep.insight.plots.timeline import draw_timeline, timeline_title
from evenstep.runlog import Event, RunLogBuilder, RunLogParser
from tests.runlog.examples import full_row, header, row, text_of

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = ("$\\frac{1", "_hidden", "<b>&--\x00\n-", "名前" * 40)


def run_log(*records):
    builder = RunLogBuilder()
    for record in RunLogParser().feed(text_of(*records)):
        builder.add(record)
    return builder.build()


def run(num_workers, num_iterations, **changes):
    workers = [f"w{i}" for i in range(num_workers)]
    rows = [full_row(k, num_workers) for k in range(num_iterations)]
    return run_log(header(workers=workers, **changes), *rows)


@pytest.mark.parametrize(
    ("num_workers", "num_iterations"), [(1, 1), (4, LONG + 1), (32, 20), (200, 5)]
)
def test_a_plot_is_a_picture(tmp_path, num_workers, num_iterations):
    path = tmp_path / "run.PNG"
    drawn = run(num_workers, num_iterations)
    plot(drawn, path, {"plain BSP": 2 * drawn.iteration_times})
    assert path.read_bytes().startswith(b"\x89PNG") and path.stat().st_size > 10_000


def texts(path):
    """The text of a picture, in order."""
    return [each.text for each in ElementTree.parse(path).iter(f"{SVG}text")]


def test_title_is_the_answer_and_the_configuration_is_the_subtitle(tmp_path):
    for name in ("a.svg", "b.svg"):
        answer = Answer(0.142, 0.014, before=0.389)
        plot(run(3, 10, source="emulated", seed=5), tmp_path / name, answer=answer)
    assert texts(tmp_path / "a.svg")[-2:] == [
        "2.74 × faster than plain BSP: 389 → 142 ms",
        "Emulated run: G, 3 workers, total 32 samples, policy even, predictor ema, seed 5",
    ]
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


@pytest.mark.parametrize(
    ("answer", "title"),
    [
        (Answer(0.3, 0.25), "An iteration took 300 ms; waiting was 25.0% of the workers' time"),
        (Answer(0.3, nan), "An iteration took 300 ms; waiting is unknown"),
        (Answer(nan, nan), "No iteration has a known time"),
        (Answer(0.5, 0.0, before=1.0), "2.00 × faster than plain BSP: 1 s → 500 ms"),
        (Answer(0.5, 0.0, before=0.4), "1.25 × slower than plain BSP: 400 → 500 ms"),
        (Answer(0.5, 0.0, before=0.501), "As fast as plain BSP: 500 ms"),
        (
            Answer(2.0, 0.0, before=3.0, before_is="policy x", estimated=True),
            "About 1.50 × faster than policy x: about 3 → 2 s",
        ),
    ],
)
def test_title_says_what_is_known(answer, title):
    assert answer.title == title


def test_answer_is_that_of_the_second_half():
    rows = [row(k, [16, 16], [0.4, 0.2]) for k in range(4)]
    rows += [row(k, [12, 20], [0.3, 0.3]) for k in range(4, 8)]
    answer = Answer.of(run_log(header(), *rows), np.array([9.0] * 4 + [0.4] * 4))
    found = (answer.iteration_time, answer.waiting_share, answer.before)
    assert found == pytest.approx((0.3, 0.0, 0.4))


def test_simulation_is_compared_with_its_true_plain_bsp(tmp_path, capsys):
    path = tmp_path / "run.svg"
    words = ["simulate", "G", "--iterations", "80", "--noise-free", "--json", "--plot", str(path)]
    assert main(words) == 0
    (figures,) = json.loads(capsys.readouterr().out)["seeds"]
    *_, title, details = texts(path)
    gain = re.fullmatch(r"(\d\.\d\d) × faster than plain BSP: \d\.\d+ → \d\.\d+ s", title)
    assert gain is not None
    assert float(gain[1]) == pytest.approx(1 / figures["time_over_bsp"], rel=0.1)
    assert details.startswith("Simulated run: G, means of iterations 40 to 79, the second half, 4 ")
    assert "oracle" in texts(path)


def test_lines_have_labels_and_labels_have_lines(tmp_path):
    drawn = run(4, 10)
    series = {"plain BSP": 2 * drawn.iteration_times, "optimum": np.full(10, nan)}
    plot(drawn, tmp_path / "run.svg", series, Answer(1.0, 0.1, straggler="w2"))
    shown = set(texts(tmp_path / "run.svg"))
    assert {"w0", "w1", "straggler: w2", "w3", "plain BSP", "this run"} <= shown
    assert "optimum" not in shown


def test_the_straggler_of_many_workers_is_the_given_one(tmp_path):
    plot(run(12, 10), tmp_path / "run.svg", answer=Answer(1.0, 0.1, straggler="w7"))
    assert "straggler: w7" in texts(tmp_path / "run.svg")


def test_unknown_times_have_no_panels(tmp_path):
    rows = [row(k, [16, 16], [nan, nan]) for k in range(5)]
    plot(run_log(header(), *rows), tmp_path / "run.svg")
    shown = texts(tmp_path / "run.svg")
    assert {"Batch sizes (samples)", "No iteration has a known time"} <= set(shown)
    assert not any(text.startswith(("Batch processing", "Iteration times")) for text in shown)


def test_a_value_without_neighbours_is_a_dot(tmp_path):
    sparse = {k: [0.5, 0.6] if k % 4 == 0 else None for k in range(12)}
    rows = [row(k, [16, 16], [0.1, 0.2], device_memory=sparse[k]) for k in range(12)]
    axes = Figure().subplots()
    drawn = run_log(header(), *rows)
    picture = Picture.of(Numbers.of(drawn, {}))
    panels.draw_workers(axes, Numbers.of(drawn, {}), picture, drawn.matrix("device_memory"))
    dots = [line.get_xdata() for line in axes.lines if line.get_marker() == "o"]
    np.testing.assert_array_equal(dots, [[0, 4, 8], [0, 4, 8]])


@pytest.mark.parametrize("seed", range(20))
def test_labels_at_the_right_do_not_overlap(seed):
    places = np.sort(np.random.default_rng(seed).uniform(0, 120, 8)).tolist()
    moved = panels.spread(places, 12.0, 120.0)
    assert (np.diff(moved) >= 12 - 1e-9).all()
    assert moved[0] >= 0 and moved[-1] <= 120


def test_workers_that_finished_last_are_in_the_timeline(tmp_path):
    # Worker 20 of 40 has a median speed, and finishes last once.
    times = np.tile(0.1 + 0.001 * np.arange(40), (8, 1))
    times[5, 20] = 0.5
    rows = [row(k, [4] * 40, times[k]) for k in range(8)]
    drawn = run_log(header(workers=[f"w{i}" for i in range(40)], total=160), *rows)
    assert timeline_title(drawn) == "The last 8 iterations: w39 finished last in 7 of them"
    draw_timeline(drawn, tmp_path / "timeline.svg")
    shown = texts(tmp_path / "timeline.svg")
    assert "w20" in shown and "w21" not in shown


def test_hostile_names_and_changes_of_membership_can_be_drawn(tmp_path):
    records = [
        header(workers=HOSTILE, job="$\\"),
        full_row(0, 4),
        Event("plan", 0, plan=0, batch_sizes=[8, 8, 8, 8]),
        Event("leave", 1, worker=HOSTILE[0], workers=HOSTILE[1:]),
        Event("note", 1, text=HOSTILE[2]),
        Event("limit", 1, worker=HOSTILE[3], cap=5),
        full_row(1, 3),
        row(2, [0, 0, 0], [np.nan] * 3),
    ]
    path = tmp_path / "run.svg"
    plot(run_log(*records), path, {HOSTILE[0]: [0.1, np.inf, np.nan]})
    ElementTree.parse(path)


def test_another_kind_of_file_is_refused(tmp_path):
    with pytest.raises(InvalidSetting, match=r"a plot must be a \.png or \.svg file"):
        plot(run(1, 1), tmp_path / "run.jpg")


def test_a_series_of_another_length_is_refused(tmp_path):
    with pytest.raises(InvalidSetting, match=r"series 'oracle' .*\(3\), got shape \(2,\)$"):
        plot(run(1, 3), tmp_path / "run.png", {"oracle": [1.0, 2.0]})


def test_a_run_log_without_iterations_is_refused(tmp_path):
    with pytest.raises(InvalidSetting, match="at least 1 iteration"):
        plot(run_log(header()), tmp_path / "run.png")


def test_matplotlib_is_loaded_only_to_draw():
    code = "import sys, evenstep.runlog; sys.exit('matplotlib' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_long_run_is_thinned_out_and_its_beginning_is_not():
    numbers = Numbers.of(run(2, 2500), {})
    whole, beginning = Picture.of(numbers), Picture.of(numbers, first=40)
    assert (whole.every, len(whole.at), whole.window) == (3, 834, 14)
    assert (beginning.every, len(beginning.at), beginning.window) == (1, 40, 1)


def test_working_and_waiting_add_up_to_the_iteration_time():
    benched = row(0, [32, 0], [0.5, np.nan], waiting=[0.0, 0.5])
    unknown = row(0, [16, 16], [0.5, 0.3])
    for each in (benched, unknown):
        numbers = Numbers.of(run_log(header(), each), {})
        picture = Picture.of(numbers)
        np.testing.assert_allclose(picture.worked + picture.waited, picture.iteration_times)
        assert numbers.unit == "ms"
