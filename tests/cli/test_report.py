"""``evenstep report``: what it says, what the page holds, and what it does with damaged logs."""

import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest

from evenstep.cli.main import main
from evenstep.runlog import Event, Record
from tests.runlog.examples import header, row, text_of

HOSTILE = ("</title><script>alert(1)</script>", '"><img src=x onerror=alert(2)>\u202e')


def slow_then_balanced(workers=("w0", "w1"), **changes):
    """A log of two workers, the second 3 times slower; balanced from iteration 2 on."""
    return text_of(
        header(workers=workers, source="emulated", **changes),
        *(row(k, [16, 16], [0.1, 0.3], waiting=[0.2, 0.0], plan=0) for k in range(2)),
        Event("plan", 2, plan=1, batch_sizes=[24, 8]),
        *(row(k, [24, 8], [0.15, 0.15], waiting=[0.0, 0.0], plan=1) for k in range(2, 8)),
        Event("end", 8),
    )


@pytest.fixture
def log(tmp_path):
    def write(text, name="run.jsonl"):
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


@pytest.fixture
def printed(capsys):
    def run(*argv):
        code = main(["report", *map(str, argv)])
        out, err = capsys.readouterr()
        assert (code, err) == (0, "")
        return out

    return run


class Page(HTMLParser):
    """The tags and the text of a page."""

    def __init__(self, path):
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.words.append(data)


def test_report_says_who_was_slow_and_what_balancing_brought(printed, log, tmp_path):
    assert printed(log(slow_then_balanced())).splitlines() == [
        "Emulated: real training, on workers that were slowed down on purpose.",
        "Worker w1 was the straggler: 2.0 times slower than the median worker.",
        "Balancing cut the iteration from 300 ms (even batch sizes at the start) to 150 ms: "
        "2.00 times faster.",
        "Waiting fell from 33.3% to 0.0% of the workers' time.",
        f"report: {tmp_path / 'run.html'}",
    ]


def test_page_holds_the_same_words_and_every_worker(printed, log, tmp_path):
    said = printed(log(slow_then_balanced()), "-o", tmp_path / "page.html").splitlines()
    page = Page(tmp_path / "page.html")
    assert set(said[:-1]) <= set(page.words)
    assert {"w0", "w1", "24", "8", "150 ms"} <= set(page.words)


def test_page_needs_nothing_else_and_runs_nothing(printed, log, tmp_path):
    printed(log(slow_then_balanced()))
    page = Page(tmp_path / "run.html")
    assert not {"script", "link", "iframe"} & {tag for tag, _ in page.tags}
    [image] = [attributes for tag, attributes in page.tags if tag == "img"]
    assert (image["src"] or "").startswith("data:image/svg+xml;base64,")
    outside = [value for _, values in page.tags for value in values.values() if value]
    assert not any(re.match(r"(https?:)?//", value) for value in outside)


def test_what_comes_from_a_log_is_escaped(printed, log, tmp_path):
    plain = log(slow_then_balanced(workers=HOSTILE, job=HOSTILE[0], policy=HOSTILE[1]), "p.jsonl")
    path = log(slow_then_balanced(workers=HOSTILE, job=HOSTILE[0], predictor=HOSTILE[0]))
    printed(path, "--plain", plain)
    page = Page(tmp_path / "run.html")
    assert "script" not in {tag for tag, _ in page.tags}
    assert not any("onerror" in attributes for _, attributes in page.tags)
    assert "\u202e" not in (tmp_path / "run.html").read_text(encoding="utf-8")


def test_json_has_the_figures_and_writes_no_page(printed, log, tmp_path):
    figures = json.loads(printed(log(slow_then_balanced()), "--json"))
    assert not (tmp_path / "run.html").exists()
    assert figures["speedup"] == pytest.approx(2.0)
    assert figures["straggler"] == {"worker": "w1", "slowdown": pytest.approx(2.0)}
    assert figures["after"]["batch_sizes"] == [24, 8]
    assert figures["before"]["waiting_share"] == pytest.approx(1 / 3)
    assert figures["ended"] and figures["complete"]


def test_another_run_can_be_the_one_before(printed, log):
    rows = (row(k, [16, 16], [0.15, 0.45]) for k in range(4))
    plain = log(text_of(header(source="emulated", policy="even"), *rows), "plain.jsonl")
    figures = json.loads(printed(log(slow_then_balanced()), "--plain", plain, "--json"))
    assert figures["before_is"] == "plain BSP"
    assert figures["before"]["iteration_time"] == pytest.approx(0.45)


@pytest.mark.parametrize("cut", range(0, 1000, 97))
def test_a_log_cut_off_anywhere_gives_a_report_that_says_so(printed, log, tmp_path, cut):
    text = slow_then_balanced()
    head = text.index("\n") + 1
    cut = head + cut % (len(text) - head - 1)
    said = printed(log(text[:cut]))
    remarks = ("The log is cut off", "The run had not ended")
    assert any(remark in said for remark in remarks)
    assert (tmp_path / "run.html").stat().st_size > 1000


def test_unknown_times_and_benched_workers_are_no_trouble(printed, log, tmp_path):
    records: list[Record] = [
        row(0, [16, 16], [np.nan, np.nan]),
        row(1, [32, 0], [0.2, np.nan], waiting=[0.0, 0.2]),
        Event("leave", 2, worker="w1", workers=["w0"]),
        row(2, [32], [0.2]),
    ]
    said = printed(log(text_of(header(), *records)))
    assert "Simulated: computed in virtual time, nothing was trained." in said
    assert "An iteration took 200 ms." in said


def test_run_log_is_never_replaced_by_its_report(log, capsys):
    path = log(slow_then_balanced(), "run.html")
    assert main(["report", str(path)]) == 2
    assert "the report must not replace the run log" in capsys.readouterr().err
    assert path.read_text() == slow_then_balanced()


@pytest.mark.parametrize(("text", "message"), [("", "header"), ("{}\nx\n{}\n", "line 1")])
def test_what_is_no_run_log_is_refused(log, capsys, text, message):
    assert main(["report", str(log(text))]) == 2
    out, err = capsys.readouterr()
    assert out == "" and message in err and "Traceback" not in err
