"""The dashboard in a real browser: what it shows, what it lets one do, and what it survives."""

import re
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import expect

from evenstep import runlog
from evenstep.estimates.words import duration
from tests.browser.dashboards import LiveLog
from tests.runlog.examples import header, row, text_of

NAMES = ["V100", "M60", "K80", "K520"]


@pytest.fixture
def live(tmp_path):
    """A log of four workers, 60 iterations in."""
    log = LiveLog(tmp_path / "run.jsonl", NAMES)
    log.event("plan", plan=0, batch_sizes=[32, 32, 32, 32], reason="the first plan")
    log.grow(60)
    yield log
    log.writer.close()


def cell(page, worker, quantity):
    return page.locator(f"tr[data-worker='{worker}'] td[data-quantity='{quantity}']")


def shown(locator) -> float:
    return float(locator.get_attribute("data-value"))


def test_values_on_the_page_are_those_in_the_log(live, dashboard, open_page, screenshot):
    page = open_page(dashboard(live.writer._file.name).url)
    last = live.last
    expect(page.locator("#iteration-time")).to_have_text(duration(last.iteration_time))
    assert shown(page.locator("#iteration-time")) == pytest.approx(last.iteration_time, rel=1e-6)
    expect(page.locator("#iteration")).to_have_text("59")
    for i in range(4):
        expect(cell(page, i, "batch_sizes")).to_have_text(str(last.batch_sizes[i]))
        for quantity in ("times", "waiting", "speeds", "predicted_speeds"):
            value = shown(cell(page, i, quantity))
            assert value == pytest.approx(getattr(last, quantity)[i], rel=1e-6, abs=1e-9)
        expect(cell(page, i, "cpu")).to_have_text(f"{100 * last.cpu[i]:.0f}%")
    expect(page.locator("#source")).to_have_text("emulated")
    expect(page.locator("#means")).to_contain_text("slowed down on purpose")
    expect(page.locator("#events li").last).to_contain_text("32/32/32/32")
    screenshot(page, "4-workers-light")


def test_the_page_follows_the_run_and_says_when_it_ends(live, dashboard, open_page):
    page = open_page(dashboard(live.writer._file.name).url)
    expect(page.locator("#state")).to_have_text("live")
    for _ in range(3):
        last = live.grow(5)
        expect(page.locator("#iteration")).to_have_text(str(last.iteration))
        expect(page.locator("#iteration-time")).to_have_text(duration(last.iteration_time))
    live.event("advice", advice="remove", worker="K520", predicted_time=0.1)
    live.event("limit", worker="V100", cap=64, reason="out of memory")
    live.event("phase", phase="fine-tune")
    for words in ("remove K520", "V100, at most 64: out of memory", "fine-tune"):
        expect(page.locator("#events")).to_contain_text(words)
    live.end()
    expect(page.locator("#state")).to_have_text("run ended")
    expect(page.locator("#banner")).to_contain_text("The run has ended: all is done")


def test_a_worker_is_chosen_by_list_by_table_and_by_keyboard(live, dashboard, open_page):
    page = open_page(dashboard(live.writer._file.name).url)
    chosen = page.locator("#workers")
    # The slowest is the one to look at first.
    expect(chosen).to_have_value("3")
    speed = page.locator("#speeds-legend li", has_text="actual").locator("b")

    def is_speed_of(i):
        value = live.last.speeds[i]
        expect(speed).to_have_text(f"{value:.0f}/s" if value >= 100 else re.compile(r"/s$"))

    chosen.select_option("0")
    is_speed_of(0)
    page.get_by_role("button", name="M60").click()
    expect(chosen).to_have_value("1")
    is_speed_of(1)
    page.locator("#timeline").focus()
    page.keyboard.press("ArrowDown")
    expect(chosen).to_have_value("2")
    expect(page.locator("#timeline-readout")).to_contain_text("Iteration 59, K80")
    page.keyboard.press("ArrowLeft")
    expect(page.locator("#timeline-readout")).to_contain_text("Iteration 58, K80")
    page.reload()
    expect(chosen).to_have_value("2")


def test_everything_is_reached_with_the_keyboard(live, dashboard, open_page):
    page = open_page(dashboard(live.writer._file.name).url)
    page.locator("body").click(position={"x": 1, "y": 400})
    page.evaluate("document.activeElement.blur()")
    reached = []
    for _ in range(60):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.id"))
    wanted = ["jobs", "theme", "timeline", "times", "sizes", "workers", "speeds", "usage", "plans"]
    assert [name for name in wanted if name not in reached] == []
    page.locator("#times").focus()
    page.keyboard.press("ArrowLeft")
    expect(page.locator("#times-legend li").first).to_have_text("iteration 58")


def test_light_and_dark(live, dashboard, open_page, screenshot):
    url = dashboard(live.writer._file.name).url
    page = open_page(url, color_scheme="dark")
    background = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(background)
    screenshot(page, "4-workers-dark")
    page.emulate_media(color_scheme="light")
    expect(page.locator("html")).to_have_attribute("data-theme", "light")
    light = page.evaluate(background)
    assert dark != light
    theme = page.get_by_role("button", name="Theme")
    theme.click()
    expect(theme).to_have_text("Theme: light")
    assert page.evaluate(background) == light
    theme.click()
    expect(theme).to_have_text("Theme: dark")
    assert page.evaluate(background) == dark
    page.reload()
    expect(theme).to_have_text("Theme: dark")
    assert page.evaluate(background) == dark


def test_a_worker_that_leaves_is_shown_to_have_left(live, dashboard, open_page, screenshot):
    page = open_page(dashboard(live.writer._file.name).url)
    expect(page.locator("#plan")).to_contain_text("4 workers")
    live.leave("M60")
    last = live.grow(3)
    expect(page.locator("#plan")).to_contain_text("3 workers")
    expect(cell(page, 1, "batch_sizes")).to_have_text("left")
    expect(cell(page, 3, "batch_sizes")).to_have_text(str(last.batch_sizes[2]))
    expect(page.locator("#events li[data-kind='leave']")).to_contain_text("M60, its lease is over")
    screenshot(page, "a-worker-left")


def test_a_server_that_goes_is_missed_and_found_again(live, dashboard, open_page, screenshot):
    first = dashboard(live.writer._file.name)
    page = open_page(first.url)
    expect(page.locator("#state")).to_have_text("live")
    first.stop()
    expect(page.locator("#banner")).to_contain_text("server is gone")
    expect(page.locator("#iteration")).to_have_text("59")
    screenshot(page, "server-gone")
    last = live.grow(4)
    dashboard(live.writer._file.name, listen=first.address)
    expect(page.locator("#state")).to_have_text("live")
    expect(page.locator("#iteration")).to_have_text(str(last.iteration))
    expect(page.locator("#events li")).to_have_count(1)


def test_a_hostile_name_is_text(tmp_path, dashboard, open_page, screenshot):
    names = [
        '<img src=x onerror="alert(1)">',
        "</title><script>alert(2)</script>",
        "right\u202eleft\n2",
        "__proto__",
        "x" * 500,
    ]
    log = LiveLog(tmp_path / "run.jsonl", names, job='"><svg onload=alert(3)>')
    log.grow(5)
    log.event("note", text="<iframe src='javascript:alert(4)'>")
    log.leave(names[1], reason="<b>bold</b>")
    log.grow(3)
    page = open_page(dashboard(tmp_path).url)
    expect(page.locator("#job")).to_have_text('"><svg onload=alert(3)>')
    expect(page.get_by_role("button", name=names[0])).to_be_visible()
    expect(page.locator("#events")).to_contain_text("<b>bold</b>")
    expect(page.locator("#events")).to_contain_text("<iframe src='javascript:alert(4)'>")
    expect(page.locator("main img, main svg, main iframe, main script, main b b")).to_have_count(0)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    screenshot(page, "hostile-names")
    log.writer.close()


def test_a_token_is_asked_for_and_never_gets_into_an_address(live, dashboard, open_page, tmp_path):
    token = tmp_path / "token"
    token.write_text("correct-horse-battery")
    page = open_page(
        dashboard(live.writer._file.name, "--viewer-token-file", token).url, ready=False
    )
    asked = page.get_by_label("This dashboard asks for a token")
    expect(asked).to_be_focused()
    asked.fill("wrong-horse")
    page.keyboard.press("Enter")
    expect(page.locator("#state")).to_have_text("this token is wrong")
    addresses = []
    page.on("request", lambda request: addresses.append(request.url))
    asked.fill("correct-horse-battery")
    page.keyboard.press("Enter")
    expect(page.locator("#iteration")).to_have_text("59")
    assert addresses
    assert not any("horse" in address for address in [*addresses, page.url])


def test_several_jobs_are_told_apart(tmp_path, dashboard, open_page):
    logs = [LiveLog(tmp_path / f"{job}.jsonl", NAMES, job=job) for job in ("first", "second")]
    ends = [log.grow(10 * (i + 1)).iteration for i, log in enumerate(logs)]
    page = open_page(dashboard(tmp_path).url)
    jobs = page.locator("#jobs option")
    expect(jobs).to_have_count(2)
    for i, job in enumerate(("first", "second")):
        option = jobs.filter(has_text=f"{job} (").get_attribute("value")
        page.locator("#jobs").select_option(option)
        expect(page.locator("#job")).to_have_text(job)
        expect(page.locator("#iteration")).to_have_text(str(ends[i]))
    third = LiveLog(tmp_path / "third.jsonl", ["alone"], job="third")
    expect(jobs).to_have_count(3)
    for log in (*logs, third):
        log.writer.close()


@pytest.mark.parametrize("workers", [1, 4, 200])
def test_no_width_and_no_theme_scrolls_sideways(
    workers, tmp_path, dashboard, open_page, screenshot
):
    log = LiveLog(tmp_path / "run.jsonl", [f"worker-{i}" for i in range(workers)])
    log.grow(40)
    log.writer.close()
    url = dashboard(tmp_path).url
    for width in (390, 900, 1500):
        phone = {"has_touch": True, "is_mobile": True} if width == 390 else {}
        page = open_page(url, width=width, height=900, **phone)
        expect(page.locator("#plan")).to_contain_text(f"{workers} worker")
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            expect(page.locator("html")).to_have_attribute("data-theme", scheme)
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
            screenshot(page, f"{workers}-workers-{width}-{scheme}")


def test_the_headline_is_settled_and_names_its_window(live, dashboard, open_page):
    live.grow(20)
    page = open_page(dashboard(live.writer._file.name).url)
    expect(page.locator("#window")).to_contain_text("iterations 40 to 79")
    expect(page.locator("#sentence")).to_contain_text("Straggler: K520, ")
    expect(page.locator("#sentence")).to_contain_text("plain BSP")
    expect(page.locator("#straggler")).to_have_text("K520")
    assert shown(page.locator("#settled-time")) == shown(page.locator("#bar-run"))
    gain = shown(page.locator("#bar-plain")) / shown(page.locator("#settled-time"))
    assert shown(page.locator("#gain")) == pytest.approx(gain, rel=1e-5)
    cell(page, 0, "times").click()
    page.locator("#workers").select_option("0")
    page.locator("#straggler").click()
    expect(page.locator("#workers")).to_have_value("3")


WARNING = """() => {
  const canvas = document.getElementById("timeline");
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  const warn = getComputedStyle(document.documentElement).getPropertyValue("--warn").trim();
  const [r, g, b] = [1, 3, 5].map((at) => parseInt(warn.slice(at, at + 2), 16));
  let found = 0;
  for (let i = 0; i < data.length; i += 4)
    if (data[i] === r && data[i + 1] === g && data[i + 2] === b) found += 1;
  return found;
}"""
"""The number of pixels of the timeline in the colour of a warning."""


@pytest.mark.parametrize(("lateness", "warns"), [(1.001, False), (1.5, True)])
def test_only_a_worker_that_costs_waiting_is_a_warning(
    lateness, warns, tmp_path, dashboard, open_page
):
    times = [0.1, 0.1, 0.1, 0.1 * lateness]
    path = tmp_path / "run.jsonl"
    path.write_text(text_of(header(NAMES), *(row(k, [8] * 4, times) for k in range(20))))
    page = open_page(dashboard(path).url)
    page.wait_for_timeout(300)
    assert (page.evaluate(WARNING) > 100) is warns


def test_usage_says_whether_it_is_free_or_used(live, dashboard, open_page):
    page = open_page(dashboard(live.writer._file.name).url)
    heads = [" ".join(head.split()) for head in page.locator("th").all_inner_texts()]
    assert {"CPU available", "memory free"} <= set(heads)
    legend = page.locator("#usage-legend")
    expect(legend).to_contain_text("CPU available")
    expect(legend).to_contain_text("memory free")


def test_iterations_that_are_not_shown_leave_a_gap_with_their_number(live, dashboard, open_page):
    live._k += 22
    live.grow(4)
    page = open_page(dashboard(live.writer._file.name).url)
    expect(page.locator("#timeline")).to_have_attribute("data-missing", "22")
    expect(page.locator("#gaps")).to_be_visible()
    live.grow(60)
    expect(page.locator("#timeline")).to_have_attribute("data-missing", "")
    expect(page.locator("#gaps")).to_be_hidden()


def test_of_200_workers_the_slowest_is_first_in_the_table_and_in_the_lanes(
    tmp_path, dashboard, open_page, screenshot
):
    names = [f"worker-{i}" for i in range(200)]
    times, sizes = np.full(200, 0.1), np.full(200, 8)
    times[137], sizes[55] = 0.26, 9
    rows = [row(k, sizes, times) for k in range(40)]
    (tmp_path / "run.jsonl").write_text(text_of(header(names, total=1601), *rows))
    page = open_page(dashboard(tmp_path).url)
    first = page.locator("tr[data-worker]").first
    expect(first).to_have_attribute("data-worker", "137")
    expect(first).to_have_class(re.compile("straggler"))
    expect(page.locator("#sentence")).to_contain_text("worker-137, 2.6 times slower")
    screenshot(page, "one-slow-of-200")
    page.locator("#workers").select_option("7")
    page.locator("#timeline").click(position={"x": 5, "y": 26})
    expect(page.locator("#workers")).to_have_value("137")
    expect(page.locator("#timeline-readout")).to_contain_text("the others waited for it")
    page.get_by_role("button", name="batch size", exact=True).click()
    expect(first).to_have_attribute("data-worker", "55")
    page.locator("th button", has_text="waiting").click()
    page.locator("th button", has_text="waiting").click()
    expect(first).to_have_attribute("data-worker", "137")


def test_charts_zoom_and_move_together_by_wheel_drag_and_keys(live, dashboard, open_page):
    live.grow(40)
    page = open_page(dashboard(live.writer._file.name).url)
    chart, other, whole = page.locator("#times"), page.locator("#usage"), page.locator("#whole")

    def part(canvas=chart):
        return [int(canvas.get_attribute(f"data-{end}")) for end in ("from", "to")]

    def width():
        return part()[1] - part()[0]

    assert part() == part(other) == [0, 99]
    chart.hover()
    scrolled = page.evaluate("scrollY")
    page.mouse.wheel(0, 1)
    expect(whole).to_be_disabled()
    page.keyboard.down("Control")
    page.mouse.wheel(0, -300)
    page.keyboard.up("Control")
    expect(whole).to_be_enabled()
    zoomed = part()
    assert part(other) == zoomed
    assert width() < 70
    box = chart.bounding_box()
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.7, box["y"] + 50, steps=4)
    page.mouse.up()
    assert part()[0] < zoomed[0]
    chart.focus()
    moved = part()
    page.keyboard.press("Shift+ArrowRight")
    assert part()[0] > moved[0]
    before = width()
    page.keyboard.press("+")
    assert width() < before
    page.keyboard.press("-")
    assert abs(width() - before) <= 1
    whole.click()
    assert part() == [0, 99]
    page.get_by_role("button", name="Zoom in").click()
    assert width() == 66
    page.get_by_role("button", name="Zoom out").click()
    assert part() == [0, 99]
    assert page.evaluate("scrollY") - scrolled < 50


def test_the_pointer_shows_the_values_of_its_iteration(live, dashboard, open_page):
    page = open_page(dashboard(live.writer._file.name).url)
    chart = page.locator("#times")
    chart.scroll_into_view_if_needed()
    box = chart.bounding_box()
    page.mouse.move(box["x"] + 0.5 * box["width"], box["y"] + 60)
    at = page.locator("#times-legend li").first
    expect(at).not_to_have_text("iteration 59")
    iteration = int(at.inner_text().split()[1])
    time = runlog.read(Path(live.writer._file.name)).iteration_times[iteration]
    own = page.locator("#times-legend li", has_text="this run").locator("b")
    expect(own).to_have_text(duration(time))
    expect(page.locator("#speeds-legend li").first).to_have_text(f"iteration {iteration}")


def test_a_second_run_is_drawn_over_the_first(tmp_path, dashboard, open_page, screenshot):
    logs = [LiveLog(tmp_path / f"{job}.jsonl", NAMES, job=job) for job in ("plain", "balanced")]
    ends = [log.grow(50) for log in logs]
    page = open_page(dashboard(tmp_path).url)
    chosen = page.locator("#jobs option", has_text="balanced")
    page.locator("#jobs").select_option(chosen.get_attribute("value"))
    expect(page.locator("#job")).to_have_text("balanced")
    second = page.locator("#others option", has_text="plain.jsonl")
    page.locator("#others").select_option(second.get_attribute("value"))
    line = page.locator("#times-legend li", has_text="plain.jsonl (emulated)")
    expect(line.locator("b")).to_have_text(duration(ends[0].iteration_time))
    expect(page.locator("#sizes-legend")).to_contain_text("plain.jsonl")
    ends[0] = logs[0].grow(5)
    logs[1].grow(5)
    expect(line.locator("b")).to_have_text(duration(ends[0].iteration_time))
    screenshot(page, "two-runs")
    page.reload()
    expect(line.locator("b")).to_have_text(duration(ends[0].iteration_time))
    page.locator("#others").select_option("")
    expect(line).to_have_count(0)
    for log in logs:
        log.writer.close()


def test_an_empty_folder_says_what_to_do_until_there_is_a_run(
    tmp_path, dashboard, open_page, screenshot
):
    (tmp_path / "other.jsonl").write_text("{}\n")
    page = open_page(dashboard(tmp_path).url, ready=False)
    expect(page.locator("#banner")).to_contain_text("no run log")
    expect(page.locator("#remedies")).to_contain_text(f"evenstep simulate G --log {tmp_path}")
    expect(page.locator("#remedies")).to_contain_text("Balancer(")
    screenshot(page, "nothing-yet")
    (tmp_path / "run.jsonl").write_text(text_of(header(), row(0)))
    expect(page.locator("#job")).to_have_text("G")
    expect(page.locator("#help")).to_be_hidden()


def test_damage_is_told(live, dashboard, open_page):
    page = open_page(dashboard(live.writer._file.name).url)
    live.writer._file.write("{broken\n")
    live.writer._file.flush()
    expect(page.locator("#banner")).to_contain_text("Stopped reading the log: run.jsonl, line 63")
    expect(page.locator("#iteration")).to_have_text("59")
