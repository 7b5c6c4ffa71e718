"""A real browser for the tests of this folder, and where their screenshots go."""

from pathlib import Path

import pytest
from playwright.sync_api import Error, expect, sync_playwright

from tests.browser.dashboards import Dashboard, chromium, launch

SCREENSHOTS = Path(__file__).parent.parent.parent / "out" / "browser"
PATIENCE = 20_000
"""Milliseconds that a test waits for the page to change."""


def pytest_collection_modifyitems(items):
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.browser)


@pytest.fixture(scope="session")
def browser():
    if chromium() is None:
        pytest.skip("no Chromium on this machine, and scripts/debian could not install one")
    # A busy machine must not make tests fail.
    expect.set_options(timeout=PATIENCE)
    with sync_playwright() as playwright:
        browser = launch(playwright)
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser):
    """Opens pages in profiles of their own; none may complain, or ask anybody else for anything."""
    contexts, complaints, asked, homes = [], [], [], {"data:"}

    def refuse(dialog):
        complaints.append(dialog.message)
        dialog.dismiss()

    def open_page(url, width=1280, height=900, ready=True, **options):
        context = browser.new_context(viewport={"width": width, "height": height}, **options)
        contexts.append(context)
        homes.add(_home(url))
        page = context.new_page()
        page.set_default_timeout(30_000)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("dialog", refuse)
        page.on("console", lambda message: _listen(message, complaints))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(url)
        if ready:
            page.wait_for_selector("html[data-ready=true]")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert complaints == []
    assert {_home(url) for url in asked} <= homes


def _home(url):
    """Return what an address begins with: scheme, host and port."""
    return "data:" if url.startswith("data:") else "/".join(url.split("/")[:3])


def _listen(message, complaints):
    # A server that is gone, or that wants a token, is no fault of the page.
    if message.type in ("error", "warning") and "Failed to load resource" not in message.text:
        complaints.append(message.text)


@pytest.fixture
def screenshot(request):
    """Keeps a picture of the whole page; it is to be looked at."""

    def keep(page, name):
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        page.wait_for_timeout(400)
        try:
            page.screenshot(path=SCREENSHOTS / f"{name}.png", full_page=True)
        except Error as error:
            raise AssertionError(f"no screenshot {name}: {error}") from error

    return keep


@pytest.fixture
def dashboard():
    """Starts dashboards, and stops those that are left."""
    started = []

    def start(*words, **options):
        started.append(Dashboard(*words, **options))
        return started[-1]

    yield start
    for one in started:
        one.stop()
