"""The migration rule: when it moves samples, comes to rest, and moves them again."""

import numpy as np
import pytest

from evenstep.errors import InvalidSetting
from evenstep.partitions import MigrationRule, Traversals

PAPER = np.array([64, 96, 128, 160, 192])


def run(rule, sizes, batches):
    """Carry out every migration as it is decided; return when, what moved, sizes, largest gap."""
    state = rule.init(sizes)
    moves, gaps = [], []
    for iteration, batch_sizes in enumerate(batches):
        state = rule.observe(state, batch_sizes)
        gaps.append(state.traversals.gap)
        plan, state = rule.decide(state)
        if plan is not None:
            moves.append((iteration, plan.num_moved))
            state = rule.init(plan.targets)
    return moves, state.traversals.sizes, np.array(gaps)


def jittered(batch_sizes, iterations, seed, jitter=3):
    rng = np.random.default_rng(seed)
    noise = rng.integers(-jitter, jitter + 1, size=(iterations, len(batch_sizes)))
    return np.maximum(np.asarray(batch_sizes) + noise, 0)


def test_counts_are_consumed_over_size():
    traversals = Traversals.of([10, 40]).consume([5, 5]).consume([10, 5])
    assert traversals.counts.tolist() == [1.5, 0.25]
    assert traversals.gap == 1.25
    assert Traversals.of([10, 40]).gap == 0


def test_nothing_moves_before_the_threshold_is_passed():
    rule = MigrationRule(threshold=2)
    moves, _, gaps = run(rule, np.full(5, 1000), [PAPER] * 15)
    assert moves == []
    assert gaps[-1] == pytest.approx(15 * 0.128)
    moves, _, gaps = run(rule, np.full(5, 1000), [PAPER] * 16)
    assert moves == [(15, 750)]


def test_done_once_and_works_for_long():
    moves, sizes, gaps = run(MigrationRule(), np.full(5, 1000), [PAPER] * 5000)
    assert len(moves) == 1
    assert sizes.tolist() == [500, 750, 1000, 1250, 1500]
    assert gaps[moves[0][0] + 1 :].max() < 1e-9


@pytest.mark.parametrize("sizes", [np.full(5, 200), np.full(5, 1000), np.full(5, 1001)])
@pytest.mark.parametrize("seed", range(2))
def test_jitter_moves_nothing_once_it_has_settled(sizes, seed):
    moves, _, gaps = run(MigrationRule(), sizes, jittered(PAPER, 3000, seed))
    assert 1 <= len(moves) <= 2
    assert moves[-1][0] < 2000
    assert gaps.max() <= 2 + PAPER.max() / sizes.min()


@pytest.mark.parametrize("seed", range(3))
def test_tiny_batches_that_jitter_by_their_own_size_move_seldom(seed):
    moves, sizes, _ = run(MigrationRule(), np.full(4, 40), jittered([2, 3, 5, 6], 8000, seed, 2))
    assert 1 <= len(moves) <= 10  # in 800 traversals; the threshold is passed hundreds of times
    assert np.abs(sizes - [20, 30, 50, 60]).max() <= 6


def test_equal_workers_never_move():
    assert run(MigrationRule(), np.full(4, 500), jittered([32] * 4, 3000, seed=0))[0] == []


def test_sizes_that_are_rounded_drift_apart_and_stay():
    # 3 : 4 of 10 samples is 4 : 6, 5 % and 3 % off: the counts run apart for ever.
    moves, sizes, _ = run(MigrationRule(), [4, 6], [[3, 4]] * 2000)
    assert (moves, sizes.tolist()) == ([], [4, 6])


@pytest.mark.parametrize("seed", range(3))
def test_a_real_change_moves_again_and_rests_again(seed):
    later = PAPER[[1, 0, 2, 3, 4]]
    batches = np.concatenate([jittered(PAPER, 2000, seed), jittered(later, 2000, seed + 9)])
    moves, sizes, _ = run(MigrationRule(), np.full(5, 1000), batches)
    after = [iteration for iteration, _ in moves if iteration >= 2000]
    assert 1 <= len(after) <= 2
    assert after[-1] < 3000
    assert np.abs(sizes - 5000 * later / 640).max() < 0.06 * 1500


def test_a_change_is_not_blurred_by_what_was_before():
    batches = [[32, 32]] * 3000 + [[48, 16]] * 300
    moves, sizes, _ = run(MigrationRule(), [1000, 1000], batches)
    # At once when the gap, which grows by 0.032 an iteration, has passed 2.
    assert moves == [(3062, 500)]
    assert sizes.tolist() == [1500, 500]


def test_change_on_the_way_to_the_threshold_is_not_blurred_by_its_first_half():
    # The gap grows to 0.896 with the first sizes, and from there by 0.032 an iteration.
    batches = [[36, 28]] * 112 + [[48, 16]] * 35
    moves, sizes, gaps = run(MigrationRule(), [1000, 1000], batches)
    assert gaps[111] == pytest.approx(0.896)
    assert moves == [(146, 500)]
    assert sizes.tolist() == [1500, 500]


def test_disks_without_room_are_planned_around():
    rule = MigrationRule(minimum=10)
    state = rule.observe(rule.init([100, 100, 100]), [900, 100, 100])
    plan, _ = rule.decide(state, caps=[120, 150, 150])
    assert plan is not None
    assert plan.targets.tolist() == [120, 90, 90]


def test_a_disk_smaller_than_the_minimum_holds_what_it_can():
    rule = MigrationRule(minimum=30)
    state = rule.observe(rule.init([80, 80, 10]), [300, 1, 1])
    plan, _ = rule.decide(state, caps=[200, 200, 20])
    assert plan is not None
    assert plan.targets.tolist() == [120, 30, 20]


def test_samples_must_suffice_for_the_minimum_from_the_beginning():
    with pytest.raises(InvalidSetting, match=r"minimum .* 2 .* 30, got 59"):
        MigrationRule(minimum=30).init([29, 30])


def test_inputs_are_left_alone():
    batch_sizes = np.array([300, 10])
    state = MigrationRule().init([100, 100])
    later = MigrationRule().observe(state, batch_sizes)
    batch_sizes[:] = 0
    assert (state.traversals.gap, later.traversals.gap) == (0, 2.9)


@pytest.mark.parametrize("bad", [{"threshold": 0}, {"tolerance": 1}, {"minimum": 0}])
def test_settings_are_checked(bad):
    ((name, value),) = bad.items()
    with pytest.raises(InvalidSetting, match=f"{name}.* got {value}"):
        MigrationRule(**bad)


def test_traversals_are_checked():
    with pytest.raises(InvalidSetting, match=r"partition size .* 1, got 0 for worker 1"):
        Traversals.of([4, 0])
    with pytest.raises(InvalidSetting, match=r"consumed .* 0, got -1"):
        Traversals.of([4, 4]).consume([0, -1])
