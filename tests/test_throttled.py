"""What the benchmarks of a throttled worker share: a failure is one, a figure is of something."""

import sys
import time

import pytest

from benchmarks.throttled import figures_of, line_through, optimum, run_workers, verdict


@pytest.mark.timeout(60)
def test_a_worker_that_fails_ends_the_other_and_is_no_success():
    waits, fails = (
        [sys.executable, "-c", "import time; time.sleep(50)"],
        [sys.executable, "-c", "1/0"],
    )
    begun = time.monotonic()
    with pytest.raises(
        RuntimeError, match=r"must end well within 55 s, got exit codes \[None, 1\]"
    ):
        run_workers([waits, fails], [{}, {}], deadline=55)
    assert time.monotonic() - begun < 50
    run_workers([[sys.executable, "-c", "import os; os.environ['GIVEN']"]], [{"GIVEN": "1"}], 55)


def test_the_share_of_the_ideal_is_of_lines_through_solo_times():
    lines = [line_through([4, 8], [0.4, 0.8]), line_through([4, 8], [0.8, 1.6])]
    even, best, first = optimum(lines, total=12)
    assert [even, best, first] == pytest.approx([1.2, 0.8, 8])
    figures = figures_of(plain=1.3, balanced=1.0, even=even, best=best)
    assert figures["share of ideal"] == pytest.approx(1.3 / 1.5)
    assert verdict(figures) == "yes"
    assert verdict(figures_of(1.2, 1.0, even, best)) == "NO"
    assert verdict(figures_of(1.3, 1.0, best, best)).startswith("no verdict")
