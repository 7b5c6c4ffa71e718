"""Advice on workers whose lines are known."""

import numpy as np
import pytest

from evenstep.core import Limits
from evenstep.core.split import makespan, split_affine
from evenstep.insight.advice import Observations, advise, case_of_cluster, observations_of
from evenstep.runlog import Event, RunLogBuilder, RunLogParser
from evenstep.simulator.clusters.registry import make_cluster
from tests.insight.advice.examples import seen
from tests.runlog.examples import header, row, text_of

OFFSETS, SLOPES = np.array([0.02, 0.05, 0.1, 0.1]), np.array([0.001, 0.002, 0.004, 0.008])
EVEN = np.full(4, 32)
VARIED = [EVEN] * 10 + [[60, 36, 20, 12]] * 10 + [[70, 34, 16, 8]] * 10
BEST = split_affine(128, OFFSETS, SLOPES, Limits.of(4))


def test_advice_on_varied_sizes_is_the_optimum():
    advice = advise(seen(OFFSETS, SLOPES, VARIED))
    assert np.abs(np.array(advice.batch_sizes) - BEST).max() <= 2
    assert advice.plain.value == pytest.approx(makespan(EVEN, OFFSETS, SLOPES), rel=0.01)
    assert advice.balanced.value == pytest.approx(makespan(BEST, OFFSETS, SLOPES), rel=0.01)
    assert advice.workers[advice.straggler] == "w3"
    assert advice.identified == [True] * 4
    assert advice.overheads == pytest.approx(OFFSETS.tolist(), abs=0.006)


def test_even_sizes_alone_widen_the_range():
    blind = advise(seen(OFFSETS, SLOPES, [EVEN] * 30, noise=0.01))
    told = advise(seen(OFFSETS, SLOPES, VARIED, noise=0.01))
    assert blind.identified == [False] * 4

    def width(advice):
        return advice.balanced.high - advice.balanced.low

    assert width(blind) > 2 * width(told)
    truth = makespan(BEST, OFFSETS, SLOPES)
    assert blind.balanced.low < truth < blind.balanced.high


@pytest.mark.parametrize("seed", range(5))
def test_range_holds_the_truth_where_sizes_varied(seed):
    advice = advise(seen(OFFSETS, SLOPES, VARIED * 3, noise=0.02, seed=seed))
    quiet = makespan(BEST, OFFSETS, SLOPES)
    # The slowest of four workers takes longer than each of them, by about their noise.
    assert advice.balanced.low < 1.03 * quiet and advice.balanced.high > quiet


def test_optimum_follows_lasting_changes_of_the_speeds():
    sizes = np.repeat([[32, 32]], 60, axis=0)
    changed = seen([0.0, 0.0], [0.001, 0.001], sizes)
    times = changed.times.copy()
    times[:30, 0] *= 3
    times[30:, 1] *= 3
    advice = advise(type(changed)(changed.workers, sizes.astype(float), times, 64))
    # One of two workers is three times as slow, the first and then the other.
    assert advice.balanced.value == pytest.approx(0.048, rel=0.1)
    assert advice.batch_sizes == [32, 32]


def test_worker_that_only_holds_the_others_up_is_not_worth_keeping():
    advice = advise(seen([0.0, 0.0, 0.5], [0.001, 0.001, 0.01], [[20, 20, 20], [40, 10, 10]] * 10))
    assert advice.not_worth_keeping == ["w2"]
    assert advice.times_without[2] == pytest.approx(0.030, rel=1e-3)


def test_workers_out_names_whom_to_drop():
    advice = advise(seen(OFFSETS, SLOPES, VARIED), num_out=2)
    assert advice.selection is not None
    assert advice.selection.left_out == ("w2", "w3")
    assert sum(advice.selection.batch_sizes) == 128


def test_larger_total_is_advised_where_overhead_dominates():
    advice = advise(seen([0.5, 0.5], [0.001, 0.002], [[16, 16], [24, 8]] * 10))
    assert advice.better_total is not None and advice.better_total.total == 128
    assert advise(seen([0.0, 0.0], [0.001, 0.002], [[16, 16], [24, 8]] * 10)).better_total is None


def test_caps_are_kept():
    capped = seen(OFFSETS, SLOPES, VARIED, caps=np.array([40, 200, 200, 200]))
    advice = advise(capped)
    assert advice.batch_sizes[0] == 40 and sum(advice.batch_sizes) == 128


def test_workers_without_batches_in_some_iterations_are_no_trouble():
    sizes = np.array([[32, 32, 32, 32]] * 10 + [[60, 40, 28, 0]] * 10 + [[50, 40, 28, 10]] * 10)
    advice = advise(seen(OFFSETS, SLOPES, sizes))
    assert np.isfinite([advice.plain.value, advice.balanced.value]).all()


def test_advice_on_a_cluster_is_its_own_optimum():
    cluster = make_cluster("A:4", noisy=False)
    at = cluster.conditions(0, 0.0)
    advice = advise(case_of_cluster(cluster, 20))
    assert advice.batch_sizes == cluster.optimum(at).tolist()
    assert advice.balanced.value == pytest.approx(
        float(cluster.expected_times(cluster.optimum(at), at).max()), rel=1e-5
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sizes": [[8]] * 5, "offsets": [0.1], "slopes": [0.1]}, "at least 2 workers, got 1"),
        ({"total": 1}, "at least one sample per worker"),
        ({"total": 2**53}, "at most 1000000000000, got 9007199254740992"),
        ({"offsets": [1e300, 0.1]}, "from 1e-09 to 1e[+]09 s, .* got 0 for worker w0"),
        ({"slopes": [1e-320] * 2, "offsets": [0.0] * 2}, "from 1e-09 .* got 0 for worker w0"),
        ({"sizes": [[8, 8]] * 2}, "of at least 3 iterations, got 2 for worker w0"),
    ],
)
def test_too_little_is_refused(changes, message):
    given = {"offsets": [0.1, 0.1], "slopes": [0.01, 0.01], "sizes": [[8, 8]] * 5} | changes
    with pytest.raises(ValueError, match=message):
        seen(**given)


@pytest.mark.timeout(20)
def test_times_that_no_clock_has_given_are_unknown():
    good = seen([0.0, 0.0], [0.01, 0.02], [[8, 8]] * 20)
    times = good.times.copy()
    times[12:, 0], times[3, 1] = 1e-320, 1e300
    odd = Observations(good.workers, good.sizes, times, good.total)
    assert advise(odd).balanced.value == pytest.approx(advise(good).balanced.value, rel=0.1)
    extreme = seen([0.0, 0.0], [1e-10, 1e7], [[50, 50]] * 20)
    assert advise(extreme).batch_sizes == [99, 1]


def test_run_whose_workers_changed_is_about_those_at_its_end():
    parser, builder = RunLogParser(), RunLogBuilder()
    leave = Event("leave", 4, worker="w1", workers=["w0", "w2"])
    text = text_of(
        header(workers=("w0", "w1", "w2")),
        *(row(k, [8, 8, 16], [0.1, 0.1, 0.1]) for k in range(4)),
        leave,
        *(row(k, [16, 16], [0.1, 0.3], caps=[100, 20]) for k in range(4, 10)),
    )
    for record in parser.feed(text):
        builder.add(record)
    seen = observations_of(builder.build())
    assert seen.workers == ("w0", "w2") and seen.caps.tolist() == [100, 20]
    assert "Workers joined or left" in seen.remarks[0]
