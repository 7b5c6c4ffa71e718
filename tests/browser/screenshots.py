"""Makes the pictures of the dashboard and of a report for the docs: see scripts/screenshots."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import Browser, Page, ViewportSize, sync_playwright

from evenstep.insight.dashboard.source import key_of
from tests.browser.dashboards import Dashboard, launch

RUNS = {
    "balanced.jsonl": ["G", "--iterations", "300"],
    "plain.jsonl": ["G", "--iterations", "300", "--policy", "even"],
    "many.jsonl": ["S", "--workers", "200", "--iterations", "200", "--policy", "even"],
}
"""Simulated runs, by the names of their logs."""

SCHEMES = ("light", "dark")
SIZE: ViewportSize = {"width": 1200, "height": 820}


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as runs, sync_playwright() as playwright:
        for name, words in RUNS.items():
            evenstep("simulate", *words, "--log", f"{runs}/{name}")
        evenstep("report", f"{runs}/balanced.jsonl", "--plain", f"{runs}/plain.jsonl")
        browser = launch(playwright)
        dashboard = Dashboard(runs)
        try:
            for scheme in SCHEMES:
                shoot_dashboard(browser, dashboard.url, scheme, folder)
                page = open_page(browser, (Path(runs) / "balanced.html").as_uri(), scheme)
                page.screenshot(path=folder / f"report-{scheme}.png")
        finally:
            dashboard.stop()
            browser.close()


def shoot_dashboard(browser: Browser, url: str, scheme: str, folder: Path) -> None:
    """Keep the first screen of a run, its charts with a second run, and a run of 200 workers."""
    first, second, many = (key_of(name) for name in ("balanced.jsonl", "plain.jsonl", "many.jsonl"))
    page = open_page(browser, f"{url}/#job={first}&other={second}", scheme)
    page.locator("#times-legend", has_text="plain.jsonl").wait_for()
    page.wait_for_timeout(1500)
    page.screenshot(path=folder / f"dashboard-{scheme}.png")
    charts = page.locator(".pair")
    # High enough that the header, which stays in sight, covers none of it.
    page.set_viewport_size({"width": SIZE["width"], "height": 3 * SIZE["height"]})
    page.locator("#times").hover()
    page.wait_for_timeout(500)
    charts.screenshot(path=folder / f"dashboard-charts-{scheme}.png")
    page = open_page(browser, f"{url}/#job={many}", scheme)
    page.locator("#state", has_text="run ended").wait_for()
    page.wait_for_timeout(1500)
    page.screenshot(path=folder / f"dashboard-200-workers-{scheme}.png")


def open_page(browser: Browser, url: str, scheme: str) -> Page:
    page = browser.new_page(color_scheme="dark" if scheme == "dark" else "light")
    page.set_viewport_size(SIZE)
    page.goto(url)
    return page


def evenstep(*words: str) -> None:
    command = [sys.executable, "-m", "evenstep", *words]
    subprocess.run(command, check=True, timeout=300, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
