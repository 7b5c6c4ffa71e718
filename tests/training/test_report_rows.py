"""Slots: rows of all workers in one array that a sum fills."""

import numpy as np
import pytest

from evenstep.core import UNLIMITED, Plan
from evenstep.errors import DivergedPlans
from evenstep.training.report_rows import WIDTH, check_digests, digest, read_rows, write_row

PLAN = Plan(number=3, iteration=7, sizes=np.array([8, 24]))


def row(batch_size=8, time=0.5, speed=16.0, cap=None, plan=PLAN, position=()):
    return write_row(batch_size, time, 0.75, 0.5, None, speed, cap, digest(plan, position))


def summed(*rows):
    """Return the sum over workers of what each writes into zeros."""
    slots = np.zeros((len(rows), len(rows), WIDTH), dtype=np.float32)
    for worker, written in enumerate(rows):
        slots[worker, worker] = written
    return slots.sum(axis=0, dtype=np.float32)


def test_reports_come_back_as_they_were_written():
    reports = read_rows(summed(row(), row(24, 0.25, 96.0)), iteration=8)
    reports.check()
    assert reports.iteration == 8
    assert reports.batch_sizes.tolist() == [8, 24]
    assert reports.times.tolist() == [0.5, 0.25]
    assert reports.cpu.tolist() == [0.75, 0.75]
    assert reports.memory.tolist() == [0.5, 0.5]
    assert np.isnan(reports.device_memory).all()
    assert reports.speeds is not None
    assert reports.speeds.tolist() == [16.0, 96.0]


def test_caps_come_back_and_who_has_none_is_unlimited():
    reports = read_rows(summed(row(cap=12), row(), row(cap=0)), iteration=8)
    reports.check()
    assert reports.caps is not None
    assert reports.caps.tolist() == [12, UNLIMITED, 0]


def test_average_samples_are_rounded_and_at_least_one():
    reports = read_rows(summed(row(7.6), row(0.2)), iteration=8)
    reports.check()
    assert reports.batch_sizes.tolist() == [8, 1]


def test_unknown_times_and_speeds_stay_unknown():
    reports = read_rows(summed(row(None, None), row(speed=None)), iteration=8)
    reports.check()
    assert reports.observed.tolist() == [False, True]
    assert reports.batch_sizes.tolist() == [0, 8]
    assert reports.speeds is None


@pytest.mark.parametrize(
    ("plan", "position"),
    [
        (Plan(4, 7, PLAN.sizes), (1, 2)),
        (Plan(3, 8, PLAN.sizes), (1, 2)),
        (Plan(3, 7, np.array([24, 8])), (1, 2)),
        (PLAN, (2, 2)),
        (PLAN, (1, 3)),
        (PLAN, ()),
    ],
)
def test_any_difference_in_plan_or_position_is_found(plan, position):
    check_digests(summed(row(position=(1, 2)), row(position=(1, 2))), PLAN, (1, 2))
    with pytest.raises(DivergedPlans, match="worker 1 used another than plan 3"):
        check_digests(summed(row(position=(1, 2)), row(plan=plan, position=position)), PLAN, (1, 2))


def test_digest_survives_float32():
    plans = [Plan(number, 0, np.array([number, 9])) for number in range(1000)]
    digests = [digest(plan) for plan in plans]
    assert np.array(digests, dtype=np.float32).astype(int).tolist() == digests
    assert len(set(digests)) > 990
