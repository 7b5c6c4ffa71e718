"""A checkpoint of another policy: the sizes come back, and what was learned begins again."""

from __future__ import annotations

import logging

import numpy as np
import pytest

from evenstep.core import Reports
from evenstep.core.planner import Planner
from evenstep.errors import StateFileError
from evenstep.policies import make_policy
from evenstep.training.checkpoint import SavedBalancer, save
from evenstep.training.checkpoint import restore as restore_saved


def planner_of(policy, workers=("a", "b")):
    return Planner(workers, 60, make_policy(policy))


def restore(planner, state):
    restore_saved(planner, SavedBalancer.of(state, "balancer"))


def trained(policy, iterations=5):
    planner = planner_of(policy)
    speeds, unknown = np.array([10.0, 30.0]), np.full(2, np.nan)
    for k in range(iterations):
        sizes = planner.plan.sizes
        planner.decide(
            Reports(k + 1, sizes, sizes / speeds, np.ones(2), np.ones(2), unknown, speeds=speeds)
        )
    return planner


@pytest.mark.parametrize("policy", ["cautious", "equal_finish"])
@pytest.mark.parametrize("workers", [("a", "b"), ("a", "b", "c")])
def test_sizes_of_the_former_default_policy_are_restored(policy, workers, caplog):
    state = save(trained("proportional"), None, iteration=5)
    planner = planner_of(policy, workers)
    with caplog.at_level(logging.WARNING):
        restore(planner, state)
    sizes = planner.plan.sizes
    assert int(sizes.sum()) == 60
    assert sizes[1] == 3 * sizes[0]
    assert f"than {planner.policy}: batch sizes are restored" in caplog.text


def test_state_of_the_same_policy_is_restored_without_a_word(caplog):
    before = trained("cautious")
    planner = planner_of("cautious")
    restore(planner, save(before, None, iteration=5))
    assert planner.plan.sizes.tolist() == [15, 45]
    for name, array in before.state().items():
        np.testing.assert_array_equal(planner.state()[name], array)
    assert not caplog.records


def test_damaged_state_of_the_same_policy_is_refused():
    state = save(trained("cautious"), None, iteration=5)
    state["balancer"]["policy.moves.error"] = float("nan")
    with pytest.raises(StateFileError, match="saved 'error' must hold finite numbers"):
        restore(planner_of("cautious"), state)
