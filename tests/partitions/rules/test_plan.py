"""Migration plans: exact targets, the fewest samples moved, few transfers."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenstep.core import Limits
from evenstep.errors import InfeasibleLimits, InvalidSetting
from evenstep.partitions import plan_migration, target_sizes


def carried_out(sizes, plan):
    sizes = np.array(sizes)
    for transfer in plan.transfers:
        assert transfer.count > 0
        assert transfer.giver != transfer.receiver
        sizes[transfer.giver] -= transfer.count
        sizes[transfer.receiver] += transfer.count
    return sizes


def fewest_moved(sizes, targets):
    """By brute force: the cheapest way of handing single samples on that ends at the targets."""
    seen = {tuple(sizes)}
    for moved in itertools.count():
        if tuple(targets) in seen:
            return moved
        seen |= {
            tuple(size - (i == giver) + (i == receiver) for i, size in enumerate(state))
            for state in seen
            for giver, receiver in itertools.permutations(range(len(sizes)), 2)
            if state[giver] > 0
        }


def fewest_transfers(surplus):
    """By brute force: one less than the members of each group whose surpluses cancel out."""
    members = [value for value in surplus if value]
    if not members:
        return 0
    first, rest = members[0], members[1:]
    best = len(members) - 1
    for size in range(1, len(rest)):
        for group in itertools.combinations(range(len(rest)), size):
            if first + sum(rest[i] for i in group) == 0:
                others = [value for i, value in enumerate(rest) if i not in group]
                best = min(best, size + fewest_transfers(others))
    return best


@pytest.mark.parametrize("seed", range(12))
def test_no_plan_moves_fewer_samples(seed):
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 4, size=int(rng.integers(2, 5)))
    targets = target_sizes(int(sizes.sum()), rng.integers(1, 9, len(sizes)), Limits.of(len(sizes)))
    plan = plan_migration(sizes, targets)
    assert plan.num_moved == fewest_moved(sizes.tolist(), targets.tolist())


@given(st.lists(st.tuples(st.integers(1, 500), st.integers(1, 99)), min_size=2, max_size=12))
def test_plan_leads_to_its_targets_with_few_transfers(workers):
    sizes = np.array([size for size, _ in workers])
    batch_sizes = [batch for _, batch in workers]
    targets = target_sizes(int(sizes.sum()), batch_sizes, Limits.of(len(sizes)))
    plan = plan_migration(sizes, targets)
    assert carried_out(sizes, plan).tolist() == targets.tolist()
    assert plan.num_moved == np.maximum(sizes - targets, 0).sum()
    assert len(plan.transfers) <= max(0, int(np.count_nonzero(sizes != targets)) - 1)
    givers = {transfer.giver for transfer in plan.transfers}
    assert givers.isdisjoint(transfer.receiver for transfer in plan.transfers)


def test_transfers_are_near_the_fewest():
    rng = np.random.default_rng(0)
    ours = fewest = 0
    for _ in range(200):
        sizes = rng.integers(5, 20, size=6)
        targets = rng.permutation(sizes)
        ours += len(plan_migration(sizes, targets).transfers)
        fewest += fewest_transfers((sizes - targets).tolist())
    assert fewest <= ours <= 1.1 * fewest


def test_who_can_be_served_wholly_is():
    plan = plan_migration([14, 13, 7, 8, 8], [10] * 5)
    assert [(t.giver, t.receiver, t.count) for t in plan.transfers] == [
        (1, 2, 3),
        (0, 3, 2),
        (0, 4, 2),
    ]


def test_the_papers_verification_moves_15_percent():
    sizes = np.full(5, 10000)
    plan = plan_migration(sizes, target_sizes(50000, [64, 96, 128, 160, 192], Limits.of(5)))
    assert plan.targets.tolist() == [5000, 7500, 10000, 12500, 15000]
    assert (plan.num_moved, len(plan.transfers)) == (7500, 2)


def test_targets_keep_minimum_and_caps():
    limits = Limits.of(3, minimum=20, cap=[1000, 1000, 300])
    assert target_sizes(1000, [1, 100, 100], limits).tolist() == [20, 680, 300]


def test_a_worker_that_processes_nothing_keeps_the_minimum():
    assert target_sizes(100, [0, 30, 10], Limits.of(3, minimum=4)).tolist() == [4, 72, 24]


def test_it_keeps_what_the_others_have_no_room_for():
    limits = Limits.of(3, minimum=4, cap=[100, 30, 30])
    assert target_sizes(100, [0, 30, 10], limits).tolist() == [40, 30, 30]


def test_what_cannot_be_is_refused():
    with pytest.raises(InfeasibleLimits, match=r"60, .* 100$"):
        target_sizes(100, [1, 1], Limits.of(2, cap=30))
    with pytest.raises(InvalidSetting, match=r"batch size .* got \[0, 0\]"):
        target_sizes(100, [0, 0], Limits.of(2))
    with pytest.raises(InvalidSetting, match=r"limits .* 2 workers, got 3"):
        target_sizes(100, [1, 1], Limits.of(3))
    with pytest.raises(InvalidSetting, match=r"got \[6, 5\] for \[5, 5\]"):
        plan_migration([5, 5], [6, 5])
