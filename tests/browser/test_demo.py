"""The demo, live: real training in the background, and a page that was open before it began."""

import subprocess
import sys

import pytest
from playwright.sync_api import expect

from evenstep import runlog
from evenstep.estimates.words import duration
from tests.browser.conftest import PATIENCE


@pytest.mark.timeout(240)
def test_the_demo_is_seen_while_it_trains(tmp_path, dashboard, open_page, screenshot):
    page = open_page(dashboard(tmp_path).url, ready=False)
    page.set_default_timeout(100_000)
    expect.set_options(timeout=100_000)
    try:
        expect(page.locator("#banner")).to_contain_text("no run log")
        words = ["demo", "--workers", "2", "--epochs", "2", "--out", str(tmp_path), "--json"]
        with subprocess.Popen(
            [sys.executable, "-m", "evenstep", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as demo:
            expect(page.locator("#source")).to_have_text("emulated")
            expect(page.locator("#state")).to_have_text("live")
            early = _iteration_beyond(page, 5)
            _iteration_beyond(page, early + 5)
            screenshot(page, "demo-live")
            said, _ = demo.communicate(timeout=120)
            assert demo.returncode == 0, said
        balanced = page.locator("#jobs option", has_text="demo-balanced.jsonl")
        page.locator("#jobs").select_option(balanced.get_attribute("value"))
        expect(page.locator("#state")).to_have_text("run ended")
        log = runlog.read(tmp_path / "demo-balanced.jsonl")
        last = log.segments[-1]
        expect(page.locator("#iteration")).to_have_text(str(log.iterations[-1]))
        expect(page.locator("#iteration-time")).to_have_text(duration(log.iteration_times[-1]))
        for i, size in enumerate(last.batch_sizes[-1]):
            cell = page.locator(f"tr[data-worker='{i}'] td[data-quantity='batch_sizes']")
            expect(cell).to_have_text(str(size))
        gain = float(page.locator("#gain").get_attribute("data-value"))
        assert gain > 1.2
        screenshot(page, "demo-ended")
    finally:
        expect.set_options(timeout=PATIENCE)


def _iteration_beyond(page, iteration):
    """Wait until the page shows a later iteration, and return it."""
    shown = -1
    for _ in range(1000):
        shown = int(page.locator("#iteration").get_attribute("data-value") or -1)
        if shown > iteration:
            return shown
        page.wait_for_timeout(100)
    raise AssertionError(f"an iteration beyond {iteration} must be shown, got {shown}")
