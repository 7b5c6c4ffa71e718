"""The plot can be drawn of any run log."""

import subprocess
import sys
import xml.etree.ElementTree

import numpy as np
import pytest

from evenstep.errors import InvalidSetting
from evenstep.insight.plots.plot import plot
from evenstep.insight.plots.plot_data import LONG, Numbers, Picture
from evenstep.runlog import Event, RunLogBuilder, RunLogParser
from tests.runlog.examples import full_row, header, row, text_of

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


def test_an_svg_says_what_was_run_and_is_the_same_again(tmp_path):
    for name in ("a.svg", "b.svg"):
        plot(run(3, 10, source="emulated"), tmp_path / name)
    text = (tmp_path / "a.svg").read_text()
    assert "Emulated run: G" in text
    assert text == (tmp_path / "b.svg").read_text()


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
    xml.etree.ElementTree.parse(path)


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
