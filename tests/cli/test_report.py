"""``evenstep report``: what it says, what the page holds, and what it does with damaged logs."""

import json
import re
from html import unescape
from html.parser import HTMLParser
from xml.etree import ElementTree

import numpy as np
import pytest

from evenstep import runlog
from evenstep.cli.main import main
from evenstep.insight.plots.palette import LIGHT
from evenstep.insight.report.figures import figures_of
from evenstep.insight.report.words import sentences
from evenstep.runlog import Event, Record
from tests.runlog.examples import header, row, text_of
from tests.terminal import shown_on_terminal

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
    said = printed(log(slow_then_balanced())).splitlines()
    assert said[0] == "Emulated: real training, on workers that were slowed down on purpose."
    assert re.fullmatch(r"Straggler: w1, 1\.[45] times slower than the median worker\.", said[1])
    assert re.fullmatch(
        r"An iteration took 150 ms, about (at|[\d.]+% above) the optimum\.", said[2]
    )
    found = re.fullmatch(
        r"([\d.]+) \(([\d.]+) to ([\d.]+)\) times faster than plain BSP, which would take .*",
        said[3],
    )
    assert found is not None
    gain, low, high = map(float, found.groups())
    # Even sizes took 300 ms.
    assert low < 2 < high and gain == pytest.approx(2, rel=0.1)
    assert said[4:] == [
        "0.0% of the workers' time was spent waiting.",
        "These are means of iterations 4 to 7, the second half.",
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
    tags = [tag for tag, _ in page.tags]
    assert not {"script", "link", "iframe", "img", "image"} & set(tags)
    assert tags.count("svg") == 3
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


def drawn(path):
    """The words in the pictures of a page, by their titles."""
    text = path.read_text(encoding="utf-8")
    found = re.findall(r"<h2>([^<]*)</h2><figure[^>]*>(<svg.*?</svg>)", text, re.DOTALL)
    return {
        unescape(title): [each.text for each in ElementTree.fromstring(svg).iter("text")]
        for title, svg in found
    }


def test_pictures_show_estimates_lanes_speeds_and_usage(printed, log, tmp_path):
    rows = [
        row(k, [16, 16], [0.1, 0.3], waiting=[0.2, 0.0], predicted_speeds=[160.0, 50.0],
            cpu=[1.0, 0.3], memory=[0.5, 0.6])
        for k in range(20)
    ]  # fmt: skip
    printed(log(text_of(header(), *rows)))
    pictures = drawn(tmp_path / "run.html")
    assert list(pictures) == [
        "An iteration took 300 ms; waiting was 33.3% of the workers' time",
        "The last 8 iterations: w1 finished last in 8 of them",
        "Speeds, CPU and memory",
    ]
    run, lanes, usage = pictures.values()
    assert {"this run", "optimum, about", "plain BSP, about", "straggler: w1"} <= set(run)
    assert {"w0", "w1", "waiting", "the last to finish", "19"} <= set(lanes)
    assert {"Available CPU (fraction)", "Free memory (fraction)"} <= set(usage)
    assert not any("Device memory" in text for text in usage)


def test_nothing_is_drawn_of_what_is_not_known(printed, log, tmp_path):
    rows = [row(k, [16, 16], [np.nan, np.nan]) for k in range(5)]
    printed(log(text_of(header(), *rows)))
    ((title, texts),) = drawn(tmp_path / "run.html").items()
    assert title == "No iteration has a known time"
    assert "Batch sizes (samples)" in texts
    assert not any("time" in text or text == "this run" for text in texts)


def test_equal_logs_give_equal_pages(printed, log, tmp_path):
    pages = []
    for name in ("a.jsonl", "b.jsonl"):
        printed(log(slow_then_balanced(), name))
        pages.append((tmp_path / name).with_suffix(".html").read_text(encoding="utf-8"))
    assert pages[0] == pages[1]


def test_colours_of_the_pictures_are_those_of_the_page(printed, log, tmp_path):
    printed(log(slow_then_balanced(workers=("#17202a", 'x="#0072b2"'))))
    page = Page(tmp_path / "run.html")
    looks = " ".join(
        value or ""
        for _, attributes in page.tags
        for name, value in attributes.items()
        if name in ("style", "fill", "stroke")
    )
    assert not re.search("#[0-9a-f]{6}", looks)
    used = set(re.findall(r"var\(--([\w-]+)\)", looks))
    assert {"ink", "run", "warn", "wait", "series-0", "series-1"} <= used <= set(LIGHT.roles)
    # A name that looks like a colour stays a name.
    run, *_ = drawn(tmp_path / "run.html").values()
    assert {"#17202a", 'straggler: x="#0072b2"'} <= set(run)


def test_names_within_a_page_are_used_once(printed, log, tmp_path):
    printed(log(slow_then_balanced()))
    page = Page(tmp_path / "run.html")
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    used = re.findall(r'(?:url\(|href=")#([\w-]+)', (tmp_path / "run.html").read_text("utf-8"))
    assert len(ids) == len(set(ids)) and set(used) == set(ids)


@pytest.mark.parametrize("num_workers", [4, 200])
def test_page_stays_small(printed, log, tmp_path, num_workers):
    rng = np.random.default_rng(0)
    names = tuple(f"w{i}" for i in range(num_workers))
    times = rng.uniform(0.1, 0.2, (3000, num_workers))
    rows = [row(k, [4] * num_workers, times[k]) for k in range(3000)]
    printed(log(text_of(header(workers=names, total=4 * num_workers), *rows)))
    assert (tmp_path / "run.html").stat().st_size < 1_000_000


def test_events_are_listed_and_plans_do_not_crowd_others_out(printed, log, tmp_path):
    plans = [Event("plan", k, plan=k, batch_sizes=[16, 16]) for k in range(150)]
    note = Event("note", 0, text="<b>memory</b> ran out")
    printed(log(text_of(header(), note, *plans, Event("end", 150, reason="done"))))
    words = Page(tmp_path / "run.html").words
    assert "<b>memory</b> ran out" in words and "the run ended: done" in words
    assert "and 52 more" in words and words.count("batch sizes 16/16") == 98


def estimated(path):
    """The figures of a log, and what is said of them, without a page."""
    run_log = runlog.read(path)
    figures = figures_of(run_log)
    return figures, " ".join(sentences(figures))


def test_balanced_run_without_a_plain_beginning_is_compared_with_an_estimate(log):
    sizes = ([24, 8], [22, 10], [26, 6], [24, 8])
    rows = [
        row(k, sizes[k % 4], [0.01 * sizes[k % 4][0], 0.03 * sizes[k % 4][1]], plan=3)
        for k in range(40)
    ]
    figures, said = estimated(log(text_of(header(policy="equal_finish"), *rows)))
    assert "times faster than plain BSP, which would take 4" in said
    assert figures.known_optimum is None
    assert figures.plain.value == pytest.approx(0.48, rel=0.05)
    assert figures.plain.low < 0.48 < figures.plain.high


def test_plain_run_is_told_what_balancing_would_save(log):
    rows = [row(k, [16, 16], [0.1, 0.3]) for k in range(20)]
    _, said = estimated(log(text_of(header(), *rows)))
    [(saved, low, high)] = re.findall(r"could save ([\d.]+)% \(([\d.]+)% to ([\d.]+)%\)", said)
    assert float(low) < 50 < float(high) and float(low) < float(saved) < float(high)


def test_picture_is_written_where_it_is_wanted(printed, log, tmp_path, capsys):
    said = printed(log(slow_then_balanced()), "--plot", tmp_path / "run.png")
    assert said.splitlines()[-1] == f"plot: {tmp_path / 'run.png'}"
    assert (tmp_path / "run.png").read_bytes().startswith(b"\x89PNG")
    assert main(["report", str(log(slow_then_balanced())), "--plot", "run.gif"]) == 2
    assert "must be a .png or .svg file" in capsys.readouterr().err


def test_many_workers_have_some_lanes_and_a_word_on_the_others(printed, log, tmp_path):
    names = tuple(f"w{i}" for i in range(40))
    times = 0.1 + 0.001 * np.arange(40)
    rows = [row(k, [4] * 40, times) for k in range(12)]
    printed(log(text_of(header(workers=names, total=160), *rows)))
    lanes = drawn(tmp_path / "run.html")["The last 8 iterations: w39 finished last in 8 of them"]
    assert any(text.endswith("the slowest and fastest 24 of 40 workers") for text in lanes)
    assert "w39" in lanes and "w0" in lanes and "w20" not in lanes


def test_json_has_the_figures_and_writes_no_page(printed, log, tmp_path):
    figures = json.loads(printed(log(slow_then_balanced()), "--json"))
    assert not (tmp_path / "run.html").exists()
    assert figures["gain"]["value"] == pytest.approx(2.0, rel=0.1)
    assert figures["estimates"]["straggler"]["worker"] == "w1"
    assert figures["phase"]["batch_sizes"] == [24, 8]
    assert figures["estimates"]["waiting_share"] == 0
    assert figures["ended"] and figures["complete"]


def test_another_run_can_be_the_one_before(printed, log):
    rows = (row(k, [16, 16], [0.15, 0.45]) for k in range(4))
    plain = log(text_of(header(source="emulated", policy="even"), *rows), "plain.jsonl")
    figures = json.loads(printed(log(slow_then_balanced()), "--plain", plain, "--json"))
    assert figures["plain_is"] == "plain BSP"
    assert figures["plain"]["value"] == figures["plain"]["low"] == pytest.approx(0.45)
    assert figures["gain"]["value"] == pytest.approx(3.0)


@pytest.mark.parametrize("cut", range(0, 1000, 197))
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
    assert said.startswith("Simulated: ")
    assert re.search(r"iteration took 200 ms\b", said)


def test_run_log_is_never_replaced_by_its_report(log, capsys):
    path = log(slow_then_balanced(), "run.html")
    assert main(["report", str(path)]) == 2
    assert re.search(r"\bnot replace\b.*, got '.*\brun\.html'", capsys.readouterr().err)
    assert path.read_text() == slow_then_balanced()


@pytest.mark.parametrize(("text", "message"), [("", "header"), ("{}\nx\n{}\n", "line 1")])
def test_what_is_no_run_log_is_refused(log, capsys, text, message):
    assert main(["report", str(log(text))]) == 2
    out, err = capsys.readouterr()
    assert out == "" and message in err and "Traceback" not in err


def test_a_run_that_was_at_the_optimum_all_along_is_when_one_worker_is_left(printed, log):
    path = log(
        text_of(
            header(policy="equal_finish"),
            *(row(k, [24, 8], [0.24, 0.24], waiting=[0.0, 0.0]) for k in range(10)),
            Event("leave", 10, worker="w1", workers=["w0"]),
            *(row(k, [32], [0.32], waiting=[0.0]) for k in range(10, 40)),
        )
    )
    figures = json.loads(printed(path, "--json"))
    assert (
        figures["estimates"]["iteration_time"] == figures["plain"]["value"] == pytest.approx(0.32)
    )
    assert figures["above_optimum"] == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("columns", [80, 160])
def test_sentences_and_tables_fit_the_terminal(log, columns, printed, tmp_path):
    path = log(slow_then_balanced())
    for command in (["report", path, "-o", tmp_path / "r.html"], ["advise", path]):
        text = shown_on_terminal("evenstep", *command, columns=columns)
        plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text).replace("\r", "")
        wide = [line for line in plain.splitlines() if len(line) > columns]
        assert [line for line in wide if not line.startswith("report: ")] == []
        # The same words as without a terminal, where no sentence is folded.
        sentences = printed(path, "-o", tmp_path / "r.html").splitlines()
        if command[0] == "report":
            assert plain.split() == " ".join(sentences).split()
