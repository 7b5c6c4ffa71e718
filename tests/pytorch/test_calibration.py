"""Calibration of a sharded balancer: workers are timed each by itself, and finish together."""

from __future__ import annotations

import io
import random
import time
from contextlib import redirect_stderr
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import Dataset, IterableDataset

from evenstep.pytorch.calibration import FittedLine, fit_line, sizes_around
from tests.pytorch.setup import FEATURES, Indices, net
from tests.pytorch.sharding import shard, sharded

pytestmark = pytest.mark.distributed


class Noisy(Dataset[torch.Tensor]):
    """Samples that are augmented at random, in three ways."""

    def __len__(self) -> int:
        return 7

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.rand(FEATURES) + random.random() + np.random.random()


class Stream(IterableDataset[int]):
    def __iter__(self):
        yield 1


class Device:
    """A loss that takes as long as a device of some overhead and speed would, in seconds.

    Its clock counts that and nothing else, unless it really sleeps.
    """

    def __init__(self, overhead: float, per_sample: float, sleeps: bool = False) -> None:
        self.overhead, self.per_sample = overhead, per_sample
        self.sizes: list[int] = []
        self._at = 0.0
        self.clock = time.perf_counter if sleeps else lambda: self._at
        self._sleeps = sleeps

    def __call__(self, model: torch.nn.Module, samples: torch.Tensor) -> torch.Tensor:
        self.sizes.append(len(samples))
        taken = self.overhead + self.per_sample * len(samples)
        self._at += taken
        if self._sleeps:
            time.sleep(taken)
        return torch.nn.functional.dropout(model(samples)).sum()


def draw() -> tuple[float, ...]:
    return torch.rand(()).item(), random.random(), np.random.random()


def seed_everything() -> None:
    torch.manual_seed(5)
    random.seed(5)
    np.random.seed(5)


def calibrate(devices, total=40, sleeps=False, **settings):
    """Return the sizes found, the sizes timed, the lines, and what is printed."""
    seed_everything()
    drawn = draw()
    printed = io.StringIO()
    overhead, per_sample = devices[dist.get_rank()]
    device = Device(overhead, per_sample, sleeps)
    settings = {"summary": True, "clock": device.clock, **settings}
    with redirect_stderr(printed), sharded(total, **settings) as (balancer, model):
        seed_everything()
        plan = balancer.calibrate(net, device, Noisy(), repeats=3)
        assert draw() == drawn
        assert all(p.grad is None for p in model.parameters())
        assert plan is balancer.newest_plan
        assert (plan.number, plan.iteration, plan.reason) == (1, 0, "calibration")
        [length] = [len(indices) for indices, _ in balancer.loader(Indices(total))]
        assert length == max(balancer.batch_size, 1)
        lines = [(line.offset, line.slope) for line in balancer.lines]
    return plan.sizes.tolist(), sorted(set(device.sizes)), lines, printed.getvalue()


def test_slow_worker_gets_as_much_less_as_it_is_slower(workers):
    answers = workers.run(calibrate, devices=[(0.0, 0.001), (0.0, 0.003)])
    (sizes, timed, lines, printed), (same, *_, others, silent) = answers
    assert sizes == same == [30, 10]
    assert timed == [10, 20, 30]
    assert lines == others
    assert np.array(lines) == pytest.approx(np.array([(0.0, 0.001), (0.0, 0.003)]))
    assert printed == (
        "evenstep: batch sizes 30/10; by the calibration, forward and backward passes take about "
        "50% less time than with even sizes\n"
    )
    assert silent == ""


def test_worker_that_is_really_slow_gets_less(workers):
    # Five times slower; on a busy machine, somewhat more or less.
    for sizes, *_ in workers.run(calibrate, devices=[(0.0, 0.001), (0.0, 0.005)], sleeps=True):
        assert sum(sizes) == 40
        assert sizes[0] > 2 * sizes[1]


def test_overhead_is_told_from_speed(workers):
    # 20 ms + 10 * 1 ms = 30 * 1 ms
    for sizes, *_ in workers.run(calibrate, devices=[(0.02, 0.001), (0.0, 0.001)]):
        assert sizes == [10, 30]


def test_limits_hold_and_bound_what_is_timed(workers):
    for sizes, timed, *_ in workers.run(
        calibrate, devices=[(0.0, 0.001), (0.0, 0.004)], maximum=28, granularity=4
    ):
        assert sizes == [28, 12]
        assert timed == [10, 20, 28]


def test_worker_that_would_finish_last_with_one_sample_is_benched(workers):
    for sizes, *_ in workers.run(calibrate, devices=[(0.0, 0.001), (0.2, 0.001)], minimum=0):
        assert sizes == [40, 0]


def recalibrate():
    """Let the worker that was fast become slow in mid-epoch; return what every iteration had."""
    speeds = [0.001, 0.003]
    device = Device(0.0, speeds[dist.get_rank()])
    with sharded(40, clock=device.clock) as (balancer, model):
        balancer.calibrate(net, device, Noisy())
        seen, plans = [], []
        for k, (indices, _) in enumerate(balancer.loader(Indices(160), num_workers=1)):
            seen.append(indices.tolist())
            plans.append((balancer.plan.number, balancer.plan.iteration))
            if k == 1:
                device.per_sample, device.sizes = speeds[1 - balancer.worker], []
                plan = balancer.calibrate(net, device, Noisy(), sizes=[8, 16])
                assert set(device.sizes) == {8, 16}
                # This iteration is not over: its weight is that of its own batch.
                assert balancer.plan is not plan
            weighed = balancer.weigh(model(torch.ones(2, FEATURES)).mean())
            assert balancer._loop.now.batch.samples == len(indices)
            weighed.backward()
        return seen, plans


def test_calibration_again_holds_from_the_next_iteration_on(workers):
    (first, plans), (second, same) = workers.run(recalibrate)
    assert sorted(i for batch in first + second for i in batch) == list(range(160))
    assert [len(batch) for batch in first] == [30, 30, 10, 10]
    assert [len(batch) for batch in second] == [10, 10, 30, 30]
    assert plans == same == [(1, 0), (1, 0), (2, 2), (2, 2)]


def fail(which):
    """Make a mistake in a calibration, on worker 1 or on both."""
    worker = dist.get_rank()
    arguments: dict[str, Any] = {
        "make_model": net, "loss_of": Device(0.0, 0.001), "dataset": Noisy(), "repeats": 1,
    }  # fmt: skip

    def too_large():
        raise MemoryError("out of memory")

    changed: dict[str, dict[str, Any]] = {
        "memory of one": {"make_model": too_large} if worker else {},
        "sharded": {"make_model": lambda: shard(net())},
        "wrapped": {"make_model": lambda: DistributedDataParallel(net())},
        "no model": {"make_model": lambda: None},
        "no sizes": {"sizes": []},
        "size": {"sizes": [1, 4]},
        "repeats": {"repeats": 0},
        "repeats of one": {"repeats": 1 + worker},
        "no samples": {"dataset": Indices(0)},
        "stream": {"dataset": Stream()},
        "nothing learned": {"loss_of": lambda model, samples: torch.ones(())},
    }
    with sharded(8, net(batch_norm=True)) as (balancer, _):
        try:
            balancer.calibrate(**{**arguments, **changed[which]})
        finally:
            assert balancer.newest_plan.number == 0
            assert balancer.lines == ()


FAILURES = {
    "sharded": ("InvalidSetting", "without fully_shard and DistributedDataParallel, got FSDP"),
    "wrapped": ("InvalidSetting", "and DistributedDataParallel, got DistributedDataParallel"),
    "no model": ("InvalidSetting", "make_model must return a torch.nn.Module, got NoneType"),
    "no sizes": ("InvalidSetting", "sizes to calibrate at must be given or left out, got none"),
    "size": ("InvalidSetting", "a size to calibrate at must be >= 2, got 1"),
    "repeats": ("InvalidSetting", "repeats must be >= 1, got 0"),
    "repeats of one": ("InvalidSetting", "repeats must be the same on all workers, got 1 on"),
    "no samples": ("InvalidSetting", "to calibrate with must have samples, got none"),
    "stream": ("InvalidSetting", "the dataset must be map-style"),
    "nothing learned": ("RuntimeError", "does not require grad"),
}


@pytest.mark.parametrize("which", FAILURES)
def test_mistakes_in_a_calibration_are_found(workers, which):
    kind, message = FAILURES[which]
    for failure in workers.failures(fail, which=which):
        assert failure.kind == kind
        assert message in failure.message


def test_calibration_that_fails_on_one_worker_fails_on_all(workers):
    first, second = workers.failures(fail, which="memory of one")
    assert (first.kind, second.kind) == ("CalibrationFailed", "MemoryError")
    assert first.message == (
        "the calibration must succeed on all workers, got MemoryError: out of memory on worker 1"
    )


@pytest.mark.parametrize(
    ("times", "line"),
    [
        # Times that fall: at least a twentieth of t / x.
        ([9.0, 9.0, 6.0], FittedLine(8 - 4 * 0.1, 0.1)),
        # More than proportional: through the origin.
        ([1.0, 8.0, 15.0], FittedLine(0.0, 2.0)),
    ],
)
def test_line_neither_falls_nor_starts_below_zero(times, line):
    fitted = fit_line([2, 4, 6], times)
    assert fitted.slope == pytest.approx(line.slope)
    assert fitted.offset == pytest.approx(line.offset)


@pytest.mark.parametrize(
    ("arguments", "sizes"),
    [
        ((1, 1, None), [1, 2]),
        ((3, 2, None), [2, 3, 5]),
        ((0, 2, None), [2, 3]),
        ((20, 1, 16), [10, 16]),
        ((4, 2, 1), [2]),
    ],
)
def test_sizes_to_time_lie_around_the_batch_size_within_what_is_possible(arguments, sizes):
    assert sizes_around(*arguments) == sizes
