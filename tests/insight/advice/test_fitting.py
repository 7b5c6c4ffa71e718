"""Lines fitted to what workers were seen to take."""

import numpy as np
import pytest

from evenstep.insight.advice.fitting import fit
from tests.insight.advice.examples import seen

OFFSETS, SLOPES = (0.02, 0.1), (0.001, 0.004)
VARIED = [[16, 16]] * 10 + [[24, 8]] * 10 + [[20, 12]] * 10


def test_varied_sizes_tell_overhead_and_slope():
    lines = fit(seen(OFFSETS, SLOPES, VARIED))
    assert lines.identified.all()
    assert lines.overheads == pytest.approx(OFFSETS)
    assert lines.slopes == pytest.approx(SLOPES)


def test_one_change_of_size_is_enough_where_noise_is_small():
    lines = fit(seen(OFFSETS, SLOPES, VARIED[:20], noise=0.001))
    assert lines.identified.all()
    assert lines.slopes == pytest.approx(SLOPES, rel=0.1)


def test_sizes_that_never_change_give_a_line_through_the_origin():
    lines = fit(seen(OFFSETS, SLOPES, [[16, 16]] * 10))
    assert not lines.identified.any()
    assert lines.overheads == pytest.approx([0.0, 0.0])
    assert lines.times_at(np.array([16.0, 16.0])) == pytest.approx([0.036, 0.164])


def test_worker_that_became_slower_does_not_look_faster_with_large_batches():
    """Its batch is made smaller because it is slower; over all points the slope is negative."""
    slow = seen(OFFSETS, SLOPES, VARIED)
    times = slow.times.copy()
    times[8:, 1] += 0.2  # Two iterations before the sizes follow.
    lines = fit(type(slow)(slow.workers, slow.sizes, times, slow.total))
    assert lines.slopes[1] == pytest.approx(SLOPES[1])
    assert lines.overheads[1] == pytest.approx(OFFSETS[1] + 0.2)


def test_spikes_do_not_move_the_line():
    calm = seen(OFFSETS, SLOPES, VARIED)
    times = calm.times.copy()
    times[[3, 15, 25]] *= 3
    lines = fit(type(calm)(calm.workers, calm.sizes, times, calm.total))
    assert lines.slopes == pytest.approx(SLOPES)


def test_spike_in_the_only_iteration_of_a_size_is_left_out():
    sizes = [[16, 16], [30, 2], *([[24, 8], [20, 12]] * 10)]
    spiked = seen(OFFSETS, SLOPES, sizes, noise=0.002)
    times = spiked.times.copy()
    times[1] *= 3
    lines = fit(type(spiked)(spiked.workers, spiked.sizes, times, spiked.total))
    assert lines.slopes == pytest.approx(SLOPES, rel=0.1)


def test_sizes_that_follow_speeds_tell_nothing():
    assert not fit(seen(OFFSETS, SLOPES, VARIED, sizes_follow=True)).identified.any()


def test_drawn_lines_pass_through_the_point_that_was_seen():
    lines = fit(seen(OFFSETS, SLOPES, VARIED, noise=0.02))
    drawn = lines.drawn(np.random.default_rng(0))
    assert drawn.times_at(lines.sizes) == pytest.approx(lines.times)
    assert not np.allclose(drawn.slopes, lines.slopes)
