"""A timer that answers late: every time stays with its own iteration, sizes and usage."""

import numpy as np
import pytest

from evenstep.core import Plan, Usage
from evenstep.core.held_plans import Held
from evenstep.manager.job_settings import JobSettings
from evenstep.predictors import Ema
from evenstep.runlog import read
from evenstep.training.collective import Alone
from evenstep.training.epochs import Epochs
from evenstep.training.loop import batches
from evenstep.training.loop_setup import make_loop
from evenstep.training.reporter import Reporter
from tests.training.cycle import cycle
from tests.training.threads import together
from tests.training.timers import LateTimer, SpeedTimer

SIZES = ([8, 4], [3, 9], [6, 6], [10, 2], [1, 11])


class Taught(Ema):
    """A predictor that remembers what it was taught."""

    def __init__(self):
        super().__init__(num_workers=1)
        self.lessons = []

    def observe(self, speeds, cpu, memory):
        self.lessons.append((speeds[0], cpu[0], memory[0]))


class Probe:
    """Reads another usage at every boundary: 0.01, 0.02, 0.03 and so on."""

    def __init__(self):
        self.count = 0

    def read(self):
        self.count += 1
        return Usage(cpu=self.count / 100, memory=1 - self.count / 100)

    def close(self): ...


@pytest.mark.parametrize("make_timer", [SpeedTimer, LateTimer])
@pytest.mark.parametrize("warm_up", [0, 2])
def test_a_speed_is_learned_with_the_usage_at_the_start_of_its_iteration(
    monkeypatch, make_timer, warm_up
):
    monkeypatch.setattr("evenstep.training.reporter.UsageProbe", Probe)
    predictor, timer = Taught(), make_timer(lambda ended: 100.0 + ended)
    reporter = Reporter(predictor, timer, warm_up, reads=True)
    for _ in range(6):
        timer.batch(8)
        timer.stop()
        reporter.row(None, None, 0)
    reporter.close()
    # The usage at the start of iteration j is the j-th that was read, and the speed of j 101 + j.
    last = 5 if make_timer is SpeedTimer else 4
    expected = [(101 + j, j / 100, 1 - j / 100) for j in range(max(warm_up, 1), last + 1)]
    learned = [lesson for lesson in predictor.lessons if np.isfinite(lesson[0])]
    np.testing.assert_allclose(learned, expected, rtol=1e-12)


def train(collective, path, timers):
    loop = make_loop(
        collective, 12, framework="threads", summary=False, policy=cycle(*SIZES), warm_up=0,
        timer=timers[collective.worker](lambda ended: 100.0 * ended), log=str(path),
    )  # fmt: skip
    for dealt in batches(loop, Epochs(96, 12)):
        assert dealt.sizes.sum() == 12
        loop.finish()
        loop.take(collective.everybody(loop.slots().ravel().astype(np.float64)).sum(axis=0))
    loop.close()


@pytest.mark.parametrize(
    "timers", [(LateTimer, LateTimer), (SpeedTimer, LateTimer), (SpeedTimer, SpeedTimer)]
)
def test_the_run_log_has_sizes_and_times_of_the_same_iteration(tmp_path, timers):
    path = tmp_path / "run.jsonl"
    together(2, lambda collective: train(collective, path, timers))
    (part,) = read(path).segments
    assert part.iterations.tolist() == list(range(8))
    known = np.isfinite(part.times)
    late = np.array([timer is LateTimer for timer in timers])
    # What a late timer would say of the last iteration nobody asks for any more.
    assert known[:-1].all() and (known[-1] == ~late).all()
    expected = part.batch_sizes / (100.0 * np.arange(1, 9))[:, None]
    np.testing.assert_allclose(part.times[known], expected[known], rtol=1e-6)


class Manager:
    """A coordinator that keeps the reports, and has one plan."""

    job, worker, iteration, blocking, agrees, timeout = "late", "a", 0, True, False, 1.0
    settings = JobSettings(1, 12, "even")
    held = (Held(Plan(0, 0, np.array([12])), ("a",)),)

    def __init__(self):
        self.reports = []

    def boundary(self, report, timeout=None):
        self.reports.append(report)
        return self.held[0].plan

    def use(self, held):
        return held.plan


@pytest.mark.parametrize(("make_timer", "late"), [(SpeedTimer, 0), (LateTimer, 1)])
def test_a_report_to_a_manager_says_which_iteration_was_measured(make_timer, late):
    manager = Manager()
    loop = make_loop(
        Alone(), 12, framework="threads", summary=False, coordinator=manager, warm_up=0,
        timer=make_timer(lambda ended: 100.0 * ended),
    )  # fmt: skip
    for _ in batches(loop, Epochs(60, 12)):
        loop.finish()
        loop.take(loop.slots())
    loop.close()
    for report in manager.reports[1 + late :]:
        measured = report.iteration - 1 - late
        assert report.measured == (measured if late else None)
        assert report.batch_processing_time == pytest.approx(12 / (100 * (measured + 1)), rel=1e-6)
    assert [report.batch_size for report in manager.reports] == [None] * (1 + late) + [12] * (
        4 - late
    )
