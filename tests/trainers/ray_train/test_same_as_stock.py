"""Training under Ray Train with planned sizes is the training of the stock script."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader

from evenstep.errors import InvalidSetting
from evenstep.ray_train import prepare
from tests.pytorch.setup import net
from tests.trainers.comparing import TABLE, assert_same
from tests.trainers.ray_train.local import fit, load

pytestmark = pytest.mark.timeout(300)

CASES = ("shuffled", "in_order", "processes", "drop_last", "own_sampler", "same_order")


@pytest.fixture(scope="module")
def compared(local_ray: None, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Run all loops in one training, and return what each has left on all workers by its name."""
    from tests.trainers.ray_train.loops import compare

    folder: Path = tmp_path_factory.mktemp("compared")
    fit(compare, folder)
    return partial(load, folder)


@pytest.mark.parametrize("case", CASES)
def test_parameters_are_those_of_the_stock_script(compared, case):
    [stock, _] = compared(f"{case}-stock")
    for worker in compared(f"{case}-balanced"):
        assert_same(worker["parameters"], stock["parameters"])


@pytest.mark.parametrize("case", CASES)
def test_iterations_have_the_samples_of_the_stock_script(compared, case):
    stock, balanced = (samples_of(compared(f"{case}-{half}")) for half in ("stock", "balanced"))
    assert [joined(*both) for both in stock] == [joined(*both) for both in balanced]
    assert {tuple(map(len, both)) for both in balanced} >= set(TABLE)
    assert {len(one) - len(other) for one, other in stock} == {0}


def test_order_is_repeated_unless_the_epoch_is_set(compared):
    samples = samples_of(compared("same_order-balanced"))
    assert [joined(*both) for both in samples[:10]] == [joined(*both) for both in samples[10:20]]


def test_what_ray_has_prepared_is_taken_as_it_is(compared):
    [stock, _] = compared("shuffled-stock")
    for worker in compared("prepared"):
        assert_same(worker["parameters"], stock["parameters"])


def test_settings_that_cannot_be_right_raise(compared):
    for errors in compared("errors"):
        assert errors["restart"].endswith("takes the agents of torchrun, got 'restart'")
        assert "divided by the number of workers, 2, got 8" in errors["total"]
        assert errors["no_total"].endswith("with a batch size, got a range_iterator")
        assert errors["batch_sampler"].endswith("with a batch size, got batch_size=None")
        assert errors["unknown"].endswith("got 'polcy'")


def test_one_worker_continues_the_training_of_two(compared, tmp_path):
    from tests.trainers.ray_train.loops import continue_alone

    [state, _] = compared("state")
    fit(continue_alone, tmp_path, num_workers=1, state=state)
    [alone] = load(tmp_path, "alone", num_workers=1)
    stock = compared("drop_last-stock")
    assert_same(alone["parameters"], stock[0]["parameters"])
    # Nine iterations of the first epoch, and four of the second one, were those of two workers.
    expected = [joined(*both) for both in samples_of(stock)[13:]]
    assert [sorted(samples) for samples in alone["samples"]] == expected


def test_prepare_takes_a_worker_of_ray_train():
    from tests.trainers.ray_train.loops import Numbered

    with pytest.raises(InvalidSetting, match=r"inside of train_loop_per_worker .*, got none$"):
        prepare(net(), DataLoader(Numbered(), 8))


def samples_of(workers: list[Any]) -> list[tuple[list[int], ...]]:
    """Return the samples of both workers in each iteration."""
    return list(zip(*(worker["samples"] for worker in workers), strict=True))


def joined(*parts: list[int]) -> list[int]:
    return sorted(index for part in parts for index in part)
