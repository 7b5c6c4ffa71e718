"""Estimates against runs whose truth is known: by hand, and simulated."""

from typing import Any

import numpy as np
import pytest

from benchmarks.estimates import compare_one
from evenstep.estimates import Estimate, Estimator, estimates_of
from evenstep.runlog import Event
from tests.runlog.examples import full_row, header, log_of, row

OVERHEADS, SLOPES = np.array([0.1, 0.02]), np.array([0.01, 0.03])
"""Even sizes of 32 take 0.5 s; the best ones are 22 and 10, with 0.32 s."""


def rows(sizes, noise=0.0, start=0, seed=0, **changes):
    rng = np.random.default_rng(seed)
    return [
        row(start + k, x, times * np.exp(noise * rng.standard_normal(2)), **changes)
        for k, x in enumerate(np.array(sizes))
        for times in [OVERHEADS + SLOPES * x]
    ]


BALANCED = [(16, 16)] * 2 + [(20, 12)] * 3 + [(22, 10)] * 35


def estimated(records, **changes) -> Any:
    return estimates_of(log_of(*records, **{"policy": "equal_finish", **changes}))


def test_plain_bsp_and_the_optimum_come_from_the_changes_of_size():
    estimates = estimated(rows(BALANCED))
    assert estimates.iteration_time == pytest.approx(0.32)
    assert estimates.plain.value == pytest.approx(0.5, rel=0.02)
    assert estimates.plain.low < 0.5 < estimates.plain.high
    assert estimates.gain.value == pytest.approx(0.5 / 0.32, rel=0.02)
    assert estimates.optimum.value == pytest.approx(0.32, rel=0.01)
    assert estimates.overheads == pytest.approx([0.1 / 0.26, 0.02 / 0.5], abs=0.02)
    assert estimates.identified == [True, True]


def test_figures_are_of_the_second_half_and_say_so():
    estimates = estimated(rows(BALANCED))
    assert (estimates.first, estimates.last, estimates.num_iterations) == (20, 39, 20)
    assert estimates.about == "iterations 20 to 39, the second half"
    assert estimates.waiting_share == pytest.approx(0.0, abs=0.02)


def test_even_sizes_are_plain_bsp_itself():
    estimates = estimated(rows([(16, 16)] * 30, noise=0.1))
    assert estimates.is_even
    assert estimates.plain == Estimate.exactly(estimates.iteration_time)
    assert estimates.straggler.worker == "w1"
    assert estimates.straggler.slowdown == pytest.approx(0.5 / 0.38, rel=0.05)
    # Sizes that never changed do not tell the overhead, so that the range is wide.
    assert estimates.identified == [False, False]
    assert estimates.optimum.low < 0.32 < estimates.optimum.high


def test_the_optimum_is_never_above_the_run_itself():
    rng = np.random.default_rng(0)
    for seed in range(20):
        sizes = rng.integers(1, 31, 40)
        records = rows(np.stack([sizes, 32 - sizes], axis=1), noise=0.3, seed=seed)
        estimates = estimated(records)
        assert estimates.above_optimum >= 0
        assert estimates.optimum.low <= estimates.optimum.value <= estimates.iteration_time


def test_spikes_count_for_plain_bsp_as_for_the_run():
    records = rows(BALANCED)
    spiked = [
        row(r.iteration, r.batch_sizes, r.times * (1 if r.iteration % 5 else 3)) for r in records
    ]
    calm, spiky = estimated(records), estimated(spiked)
    assert spiky.iteration_time == pytest.approx(1.4 * calm.iteration_time)
    assert spiky.gain.value == pytest.approx(calm.gain.value, rel=0.05)


def test_a_worker_that_slows_down_does_not_look_like_overhead():
    sizes = [(16, 16)] * 2 + [(20, 12)] * 3 + [(22, 10)] * 25 + [(28, 4)] * 30
    records = rows(sizes)
    slower = [
        row(r.iteration, r.batch_sizes, r.times * np.array([1.0, 1.0 if r.iteration < 27 else 2.0]))
        for r in records
    ]
    estimates = estimated(slower)
    # 16 samples of the second worker take twice 0.5 s now.
    assert estimates.plain.value == pytest.approx(1.0, rel=0.1)
    assert estimates.plain.low < 1.0 < estimates.plain.high


def test_sizes_that_follow_speeds_are_taken_as_the_policy_takes_them():
    speeds = np.array([100.0, 50.0])
    rng = np.random.default_rng(0)
    records = []
    for k in range(60):
        now = speeds * rng.uniform(0.5, 1.0, 2)
        sizes = np.array([16, 16]) if k == 0 else np.rint(32 * now / now.sum()).astype(int)
        records.append(row(k, sizes, sizes / now))
    estimates = estimated(records, policy="proportional")
    plain = np.mean([(16 * r.times / r.batch_sizes).max() for r in records[30:]])
    assert estimates.plain.value == pytest.approx(plain, rel=1e-6)


@pytest.mark.parametrize("last", [(8, 8), (8, 7), (1, 0)])
def test_the_end_of_an_epoch_is_no_other_size(last):
    records = [
        row(k, *((last, 0.01 * np.array(last)) if k % 10 == 9 else ((16, 16), (0.26, 0.5))))
        for k in range(40)
    ]
    for policy in ("even", "proportional"):
        estimates = estimated(records, policy=policy)
        assert estimates.is_even
        assert estimates.optimum.low < estimates.optimum.high


@pytest.mark.parametrize("pieces", [(4, 4), (4, 2), (64, 64)])
def test_accumulated_batches_are_batches(pieces):
    whole, last = pieces
    records = [
        row(r.iteration, many * r.batch_sizes, many * r.times)
        for r in rows(BALANCED)
        for many in [last if r.iteration % 10 == 9 else whole]
    ]
    estimates, single = estimated(records), estimated(rows(BALANCED))
    assert estimates.gain.value == pytest.approx(single.gain.value, rel=0.02)
    assert estimates.overheads == pytest.approx(single.overheads)


def test_a_worker_without_a_batch_would_have_one_with_plain_bsp():
    # The third worker is 20 times slower; it has a batch in one of 5 iterations only.
    benched = [
        row(k, [15, 15, 0], [0.15, 0.15, np.nan])
        if k % 5
        else row(k, [14, 14, 2], [0.14, 0.14, 0.4])
        for k in range(40)
    ]
    estimates = estimated(benched, workers=("w0", "w1", "w2"), total=30)
    assert estimates.plain.low < 2.0 < 1.1 * estimates.plain.high
    assert estimates.plain.value > 1.2
    assert estimates.straggler.worker == "w2"


def test_limits_and_granularity_bound_the_optimum():
    records = [row(k, [16] * 4, [0.1, 0.2, 0.3, 0.4]) for k in range(20)]
    names = {"workers": ("a", "b", "c", "d"), "total": 64}
    only = estimated(records, settings={"granularity": 16}, **names)
    assert only.optimum.value == only.iteration_time
    capped = [row(r.iteration, r.batch_sizes, r.times, caps=[18] * 4) for r in records]
    assert estimated(capped, **names).optimum.value > 0.3
    assert estimated(records, **names).optimum.value < 0.3


def test_limits_that_end_are_the_same_live_and_from_a_file():
    records = [row(k, [16, 16], [0.1, 0.3], caps=[18, 64] if k < 10 else None) for k in range(30)]
    live = Estimator(header(policy="equal_finish"))
    for record in records:
        live.take(record)
    assert live.estimates() == estimated(records)


def test_iterations_that_a_log_leaves_out_count_by_the_next_one():
    whole = [row(k, [16, 16], [0.1, 0.2 if k < 90 else 0.4]) for k in range(100)]
    skimmed = [r for r in whole if r.iteration % 5 == 4 or r.iteration >= 95]
    assert estimated(skimmed).iteration_time == pytest.approx(
        estimated(whole).iteration_time, rel=0.02
    )


def test_a_training_that_goes_back_begins_again():
    records = [*rows(BALANCED), *rows([(22, 10)] * 20, start=10)]
    live = Estimator(header(policy="equal_finish"))
    for record in records:
        live.take(record)
    estimates: Any = live.estimates()
    assert (estimates.first, estimates.last) == (20, 29)


def test_times_that_no_clock_gives_are_unknown():
    odd = [row(0, [16, 16], [1e17, 0.3]), row(1, [32, 0], [0.1, 5.0])]
    records = [*odd, *(row(k, [16, 16], [0.1, 0.3]) for k in range(2, 30))]
    assert estimated(records).iteration_time == pytest.approx(0.3)


def test_a_gap_in_the_numbers_leaves_the_newest_iteration():
    records = [row(k, [16, 16], [0.1, 0.3]) for k in range(601)]
    estimates = estimated([*records, row(10_000, [16, 16], [0.1, 0.3])])
    assert estimates is not None and estimates.last == 10_000


def test_a_change_of_workers_begins_a_new_part_and_keeps_what_is_known():
    leave = Event("leave", 40, worker="w2", workers=["w0", "w1"])
    three = [
        row(k, [*x, 8], [*(OVERHEADS + SLOPES * np.array(x)), 0.05])
        for k, x in enumerate([(12, 12)] * 4 + [(14, 10)] * 36)
    ]
    records = [*three, leave, *rows([(22, 10)] * 20, start=40)]
    estimates = estimated(records, workers=("w0", "w1", "w2"))
    assert estimates.workers == ("w0", "w1")
    assert (estimates.first, estimates.last) == (50, 59)
    assert estimates.identified == [True, True]
    assert estimates.plain.value == pytest.approx(0.5, rel=0.1)


def test_another_total_begins_a_new_part():
    plan = Event("plan", 20, plan=1, batch_sizes=[8, 8])
    records = [*rows([(16, 16)] * 20), plan, *rows([(8, 8)] * 10, start=20, plan=1)]
    estimates = estimated(records)
    assert (estimates.first, estimates.last) == (25, 29)
    assert estimates.is_even
    assert estimates.iteration_time == pytest.approx(0.26)


def test_granularity_of_the_run_is_that_of_its_even_sizes():
    records = rows([(24, 8)] * 20)
    of_16 = estimated(records, settings={"granularity": 16})
    assert of_16.plain.value == pytest.approx(0.5, rel=0.3)
    assert estimated(rows([(32, 16)] * 20), total=48, settings={"granularity": 16}).is_even


def test_memory_does_not_grow_and_measured_figures_are_exact():
    estimator = Estimator(header(policy="equal_finish"))
    records = rows([(20, 12), (22, 10)] * 4000, noise=0.05)
    for record in records:
        estimator.take(record)
    assert len(estimator._held) <= 512
    estimates: Any = estimator.estimates()
    assert estimates.num_iterations == pytest.approx(4000, abs=40)
    real = [max(r.times) for r in records[estimates.first :]]
    assert estimates.iteration_time == pytest.approx(np.mean(real))
    waits = [r.times.max() - r.times for r in records[estimates.first :]]
    worked = np.sum([r.times for r in records[estimates.first :]])
    assert estimates.waiting_share == pytest.approx(np.sum(waits) / (np.sum(waits) + worked))


def test_live_and_from_a_file_are_the_same_to_the_last_bit():
    records = [
        *rows(BALANCED, noise=0.05),
        Event("join", 40, worker="w2", workers=["w0", "w1", "w2"]),
        *(full_row(k, 3) for k in range(40, 90)),
        Event("end", 90),
    ]
    live = Estimator(header(policy="equal_finish"))
    for record in records:
        live.take(record)
        live.estimates()
    assert live.estimates() == estimated(records)
    assert live.estimates("all") == estimates_of(log_of(*records, policy="equal_finish"), "all")


@pytest.mark.parametrize(
    "records",
    [
        [],
        [row(0, [16, 16], [np.nan, np.nan])],
        [row(0, [0, 0], [0.0, 0.0])],
    ],
    ids=["no rows", "no times", "no batches"],
)
def test_without_times_there_are_no_estimates(records):
    assert estimated(records) is None


def test_what_a_worker_without_a_batch_would_take_is_unknown():
    estimates = estimated([row(k, [32, 0], [0.2, np.nan]) for k in range(10)])
    assert np.isnan(estimates.plain.value) and np.isnan(estimates.optimum.value)
    assert estimates.iteration_time == pytest.approx(0.2)
    assert estimates.as_json()["plain"] == {"value": None, "low": None, "high": None}


@pytest.mark.parametrize("policy", ["even", None])
@pytest.mark.parametrize(
    ("scenario", "workers"), [("G", 4), ("G", 64), ("P", 16), ("S", 4), ("M", 16)]
)
def test_simulated_truth_is_found(scenario, workers, policy):
    run = compare_one(scenario, workers, policy, seed=201)
    assert run.estimated_plain == pytest.approx(run.plain, rel=0.05)
    assert run.contained and run.straggler and run.above_optimum >= 0
