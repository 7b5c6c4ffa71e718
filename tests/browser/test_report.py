"""The report in a real browser that has no network."""

from evenstep.cli.main import main
from tests.browser.dashboards import LiveLog


def test_a_report_needs_no_network(tmp_path, open_page, screenshot, capsys):
    log = LiveLog(tmp_path / "run.jsonl", ["V100", "<img src=x onerror=alert(1)>"])
    log.grow(40)
    log.end()
    assert main(["report", str(tmp_path / "run.jsonl")]) == 0
    capsys.readouterr()
    page = open_page((tmp_path / "run.html").as_uri(), ready=False, offline=True)
    assert "live" in page.locator("h1").inner_text()
    text = page.locator("body").inner_text()
    assert "Emulated: real training" in text
    assert "<img src=x onerror=alert(1)>" in text
    assert page.locator("img, svg").count() > 0
    assert page.evaluate("[...document.images].every(image => image.naturalWidth > 0)")
    screenshot(page, "report")
    page.emulate_media(color_scheme="dark")
    screenshot(page, "report-dark")
