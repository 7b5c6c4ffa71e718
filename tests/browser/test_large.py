"""A long run of many workers: 200 of them, and 100,000 iterations."""

import json
import time

import numpy as np
import pytest
from playwright.sync_api import expect

from evenstep.runlog import Event, Header, IterationRow
from evenstep.runlog.writer import event_line, header_line, row_line
from tests.browser.conftest import SCREENSHOTS

WORKERS, ITERATIONS = 200, 100_000

LATE = """() => new Promise((resolve) => {
  let before = performance.now(), worst = 0, frames = 0;
  const frame = () => {
    const now = performance.now();
    worst = Math.max(worst, now - before);
    before = now;
    frames += 1;
    if (frames < 60) requestAnimationFrame(frame); else resolve(worst);
  };
  requestAnimationFrame(frame);
})"""
"""The longest time between two frames of sixty, in milliseconds."""


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """A log of half a gigabyte, whose rows repeat after a while."""
    path = tmp_path_factory.mktemp("large") / "run.jsonl"
    rng = np.random.default_rng(0)
    names = [f"worker-{i}" for i in range(WORKERS)]
    sizes = rng.integers(16, 48, WORKERS)
    speeds = rng.uniform(150, 500, WORKERS)
    rests = []
    for _ in range(64):
        times = sizes / speeds * rng.lognormal(0, 0.05, WORKERS)
        line = row_line(IterationRow(0, 0, 0.0, sizes, times, times.max() - times))
        rests.append(line.partition(',"batch_sizes"')[2])
    header = Header("simulated", "large", names, int(sizes.sum()), "proportional", "ema")
    with path.open("w") as file:
        file.write(header_line(header) + "\n")
        for k in range(ITERATIONS):
            rest = rests[k % 64]
            file.write(f'{{"iteration":{k},"plan":0,"start":{0.3 * k:.6f},"batch_sizes"{rest}\n')
        file.write(event_line(Event("end", ITERATIONS)) + "\n")
    yield path
    path.unlink()


@pytest.mark.timeout(300)
def test_a_large_run_opens_soon_and_stays_responsive(path, dashboard, open_page, screenshot):
    server = dashboard(path)
    figures = {}
    began = time.perf_counter()
    page = open_page(server.url)
    figures["first_sight"] = time.perf_counter() - began
    expect(page.locator("#state")).to_have_text("run ended", timeout=120_000)
    figures["all_read"] = time.perf_counter() - began
    expect(page.locator("#iteration")).to_have_text("99,999")
    expect(page.locator("#banner")).to_contain_text("This log is long")
    page.close()

    began = time.perf_counter()
    page = open_page(server.url)
    figures["opened_again"] = time.perf_counter() - began
    expect(page.locator("#iteration")).to_have_text("99,999")
    expect(page.locator("tr[data-worker]")).to_have_count(WORKERS)
    figures["longest_frame"] = page.evaluate(LATE) / 1000
    began = time.perf_counter()
    page.locator("#workers").select_option("123")
    expect(page.locator("#sizes-legend")).to_contain_text("worker-123")
    figures["worker_switched"] = time.perf_counter() - began
    sent = page.evaluate(
        "performance.getEntriesByType('resource').reduce((sum, one) => sum + one.transferSize, 0)"
    )
    assert sent < 300_000
    screenshot(page, "200-workers-100000-iterations")
    # Times are kept, not judged: a busy machine must not make tests fail.
    text = json.dumps({name: round(value, 2) for name, value in figures.items()})
    (SCREENSHOTS / "large.json").write_text(text + "\n")
    print(f"\n200 workers, 100,000 iterations, in seconds: {text}")
