"""One set of figures: for the same run log, every view shows the same, to the last digit."""

import json
import re

import numpy as np
import pytest

from evenstep import runlog
from evenstep.cli.main import main
from evenstep.cli.watch_view import Watched
from evenstep.core import Plan
from evenstep.estimates import Estimates, estimates_of
from evenstep.insight.dashboard import view
from evenstep.insight.dashboard.folder import LogFile
from evenstep.insight.plots.plot import Answer
from evenstep.runlog import Event, RunLogParser
from evenstep.training.recorder import Summary
from tests.runlog.examples import full_row, header, row, text_of


def simulated(cluster, workers, iterations, *options):
    def make(path):
        argv = ["simulate", cluster, "--workers", workers, "--iterations", iterations, *options]
        assert main([*map(str, argv), "--log", str(path), "--json"]) == 0

    return make


def cut(path):
    simulated("G", 4, 60)(path)
    text = path.read_text()
    path.write_text(text[: int(0.7 * len(text))])


def changing(path):
    workers = ["w0", "w1", "w2"]
    path.write_text(
        text_of(
            header(policy="equal_finish", total=40),
            *(row(k, [20, 20], [0.1, 0.2]) for k in range(10)),
            Event("join", 10, worker="w2", workers=workers),
            *(full_row(k, 3) for k in range(10, 50)),
            Event("leave", 50, worker="w0", workers=workers[1:]),
            *(row(k, [24, 16], [0.15, 0.1 + 0.01 * (k % 3)]) for k in range(50, 90)),
            Event("end", 90),
        )
    )


LOGS = {
    "G, 4 workers": simulated("G", 4, 120),
    "G, 200 workers": simulated("G", 200, 60),
    "P": simulated("P", 8, 80),
    "plain": simulated("G", 4, 40, "--policy", "even"),
    "cut off": cut,
    "joins and leaves": changing,
}


@pytest.fixture(scope="module", params=list(LOGS))
def log(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("views") / "run.jsonl"
    LOGS[request.param](path)
    return path


@pytest.fixture
def printed(log, capsys):
    def run(command, *options):
        capsys.readouterr()
        assert main([command, str(log), *options]) == 0
        return capsys.readouterr().out

    return run


def estimates_in(log) -> Estimates:
    estimates = estimates_of(runlog.read(log))
    assert estimates is not None
    return estimates


def told(text):
    """The figures that a text tells: the gain or what could be saved, and the waiting."""
    gains = re.findall(r"[\d.]+ \([\d.]+ to [\d.]+\) times (?:faster|slower) than plain BSP", text)
    could = re.findall(r"balancing could save [^.]+%", text)
    plain = re.findall(r"plain BSP, which would take ([^.]+(?:\.\d[^.]*)*)\.", text)
    waiting = re.findall(r"([\d.]+%) of the workers' time|Waiting ([\d.]+%)", text)
    slow = re.findall(r"Straggler: (\S+), ([\d.]+) times", text)
    return {
        "gain": gains[:1], "could": could[:1], "plain": plain[:1],
        "waiting": [a or b for a, b in waiting[:1]], "straggler": slow[:1],
    }  # fmt: skip


def test_every_view_says_the_same(log, printed):
    report = told(printed("report", "-o", str(log.with_suffix(".html"))))
    estimates = estimates_in(log)
    assert report["waiting"] == [f"{estimates.waiting_share:.1%}"]
    dashboard = LogFile(log)
    while dashboard.poll():
        pass
    reading = dashboard.reading
    assert reading is not None
    sentence = view.figures(reading.job)["sentence"]
    watched = Watched()
    watched.take(RunLogParser().feed(log.read_text()))
    assert told(sentence) == report
    assert watched.estimates() == reading.job.estimates() == estimates
    advice = told(printed("advise"))
    assert advice["waiting"] == report["waiting"]
    assert advice["gain"] == report["gain"] and advice["plain"] == report["plain"]
    if advice["straggler"]:
        assert advice["straggler"] == report["straggler"]


def test_json_has_the_same_numbers(log, printed):
    estimates = estimates_in(log).as_json()
    report, advice = (
        json.loads(printed("report", "--json")),
        json.loads(printed("advise", "--json")),
    )
    assert report["estimates"] == advice["estimates"] == estimates
    assert report["plain"] == advice["plain"] == estimates["plain"]
    assert advice["balanced"] == estimates["optimum"]
    total = next(total for total in advice["totals"] if total["total"] == advice["total"])
    assert total["iteration_time"] == pytest.approx(estimates["optimum"]["value"])


def test_summary_of_a_training_is_that_of_its_run_log(log):
    run_log = runlog.read(log)
    summary = Summary(run_log.header)
    if len(run_log.segments) > 1:
        pytest.skip("a training whose workers change begins a new summary")
    for record in run_log.segments[0].rows():
        summary.observe(record, Plan(record.plan, 0, record.batch_sizes))
    estimates = estimates_in(log)
    figures = summary.figures()
    assert figures["evenstep/settled/gain"] == estimates.gain.value
    assert figures["evenstep/settled/iteration_time"] == estimates.iteration_time
    assert f"{estimates.waiting_share:.1%} of the workers' time" in summary.line()


def test_title_of_the_plot_is_the_same_gain(log):
    run_log = runlog.read(log)
    estimates = estimates_in(log)
    title = Answer.of(run_log).title
    gain = estimates.gain.value
    if estimates.gain.low > 1 and not np.isclose(gain, 1, atol=0.02):
        assert f"{gain:.2f} × faster" in title
    else:
        assert "faster" not in title
