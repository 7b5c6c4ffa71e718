"""The report in a real browser that has no network."""

import pytest

from evenstep.cli.main import main
from tests.browser.dashboards import LiveLog


@pytest.fixture
def report(tmp_path, capsys):
    """Makes the report of an emulated run, and returns its address."""

    def make(workers, iterations=40):
        log = LiveLog(tmp_path / "run.jsonl", workers)
        log.grow(iterations)
        log.end()
        assert main(["report", str(tmp_path / "run.jsonl")]) == 0
        capsys.readouterr()
        return (tmp_path / "run.html").as_uri()

    return make


def test_a_report_needs_no_network(report, open_page):
    url = report(["V100", "<img src=x onerror=alert(1)>"])
    page = open_page(url, ready=False, offline=True)
    assert "live" in page.locator("h1").inner_text()
    text = page.locator("body").inner_text()
    assert "Emulated: real training" in text
    assert "<img src=x onerror=alert(1)>" in text
    assert page.locator("svg").count() == 3 and page.locator("img").count() == 0
    # Letters of pictures are text: a search finds them.
    assert page.locator("svg text", has_text="<img src=x onerror").count() > 0


SIZES = """() => [...document.querySelectorAll("svg")].map(svg => {
  const box = svg.getBoundingClientRect(), scale = box.width / svg.viewBox.baseVal.width;
  const texts = [...svg.querySelectorAll("text")];
  const boxes = texts.map(text => text.getBoundingClientRect());
  return {
    smallest: Math.min(...texts.map(text => scale * parseFloat(getComputedStyle(text).fontSize))),
    beyond: Math.max(...boxes.map(one => Math.max(box.left - one.left, one.right - box.right))),
    outside: svg.parentElement.getBoundingClientRect().right - innerWidth,
  };
})"""


@pytest.mark.parametrize("num_workers", [1, 4, 8, 9, 200])
def test_pictures_can_be_read_at_any_width(report, open_page, screenshot, num_workers):
    url = report([f"worker-{i}" for i in range(num_workers)], iterations=150)
    page = open_page(url, ready=False)
    for width in (390, 900, 1500):
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        for sizes in page.evaluate(SIZES):
            assert sizes["smallest"] >= 8.5
            assert sizes["beyond"] <= 1
            assert sizes["outside"] <= 0
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            screenshot(page, f"report-{num_workers}-{width}-{scheme}")


def test_pictures_follow_the_theme(report, open_page):
    page = open_page(report(["w0", "w1"]), ready=False, color_scheme="light")
    seen = {}
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        seen[scheme] = page.evaluate(
            """() => [...document.querySelectorAll("svg *")].map(one => {
              const style = getComputedStyle(one);
              return [one.tagName, style.fill, style.stroke];
            })"""
        )
    texts = {
        scheme: {fill for tag, fill, _ in looks if tag == "text"} for scheme, looks in seen.items()
    }
    assert texts["light"] and not texts["light"] & texts["dark"]
    assert all("rgb(255, 255, 255)" not in (fill, stroke) for _, fill, stroke in seen["dark"])
