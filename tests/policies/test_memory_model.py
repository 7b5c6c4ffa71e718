"""The memory model: a linear fit of the readings that errs on the safe side."""

import numpy as np
import pytest

from evenstep.core import UNLIMITED
from evenstep.policies.memory_model import MemoryModel
from tests.policies.examples import view_of

NAN = np.nan


def model_of(*readings, workers=1):
    """Return the model after readings (size, share in use), one tuple per worker and boundary."""
    model = MemoryModel.fresh(workers)
    for reading in readings:
        pairs = [reading] if workers == 1 else reading
        sizes, used = zip(*pairs, strict=True)
        times = [NAN if size == 0 else 1.0 for size in sizes]
        model = model.observe(view_of(sizes, times, device_memory=used).reports)
    return model


def caps(*readings, workers=1):
    return model_of(*readings, workers=workers).caps().tolist()


def test_without_readings_there_is_no_cap():
    assert caps() == [UNLIMITED]
    assert caps((32, NAN)) == [UNLIMITED]
    assert np.isnan(model_of().slopes()).all()


def test_one_reading_is_a_line_through_the_origin():
    # 0.5 at 32 samples: 1 / 64 each, and 0.45 more are 28.8 samples.
    assert caps((32, 0.5)) == [60]
    assert model_of((32, 0.5)).slopes().tolist() == [0.5 / 32]


def test_two_sizes_far_enough_apart_are_a_line_of_their_own():
    # 0.5 at 32 and 0.6 at 48: 1 / 160 each, and 0.35 more are 56 samples.
    assert caps((32, 0.5), (48, 0.6)) == [104]
    assert caps((48, 0.6), (32, 0.5)) == [104]


@pytest.mark.parametrize(("size", "cap"), [(33, 33 + 26), (35, 35 + 27), (36, 36 + 53)])
def test_sizes_less_than_a_tenth_apart_do_not_make_a_line(size, cap):
    # 13 / 32 + 1 / 80 are left, at (17 / 32) / size each, or from 36 on at (1 / 32) / 4.
    assert caps((32, 16 / 32), (size, 17 / 32)) == [cap]


def test_small_sizes_must_be_two_samples_apart():
    assert model_of((4, 0.4), (5, 0.5)).slopes().tolist() == [0.1]
    assert model_of((4, 0.4), (6, 0.5)).slopes().tolist() == [pytest.approx(0.05)]
    assert model_of((5, 0.4), (6, 0.5)).slopes().tolist() == [pytest.approx(0.5 / 6)]


def test_a_line_that_goes_down_is_not_believed():
    assert model_of((32, 0.5), (64, 0.4)).slopes().tolist() == [0.4 / 64]


def test_a_line_that_is_almost_flat_is_believed_to_a_twentieth():
    flat = model_of((32, 0.5), (64, 0.5 + 1e-9)).slopes()
    assert flat.tolist() == [pytest.approx(0.05 * 0.5 / 64)]


def test_a_reading_above_the_guard_asks_for_less():
    # 0.5 at 32, 1.0 at 64: 1 / 64 each, and 0.05 too many are 3.2 samples.
    assert caps((32, 0.5), (64, 1.0)) == [60]


def test_memory_that_is_not_used_is_no_limit():
    assert caps((32, 0.0)) == [UNLIMITED]


def test_a_worker_without_samples_or_reading_keeps_what_was_known():
    known = caps((32, 0.5), (48, 0.6))
    assert caps((32, 0.5), (48, 0.6), (0, 0.3)) == known
    assert caps((32, 0.5), (48, 0.6), (40, NAN)) == known


def test_every_worker_has_its_own_line():
    readings = [[(32, 0.5), (32, NAN), (10, 0.9)], [(48, 0.6), (48, 0.5), (0, NAN)]]
    assert caps(*readings, workers=3) == [104, 91, 10]


def test_the_line_follows_the_newest_sizes():
    # From 48 to 96 samples each one takes 0.375 / 48 = 1 / 128, and 0.075 more are 9.6 samples.
    assert caps((32, 0.5), (48, 0.5), (96, 0.875)) == [105]


def test_observing_does_not_change_the_model_before():
    before = model_of((32, 0.5))
    before.observe(view_of([48], [1.0], device_memory=[0.6]).reports)
    assert before.caps().tolist() == [60]
