"""Rows of Ray Data are read by each worker, as many as its plan says."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import pytest
import torch
import torch.nn.functional as F

from tests.pytorch.setup import data, net, parameters
from tests.trainers.comparing import TOTAL, assert_same
from tests.trainers.ray_train.local import fit, load

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def streamed(local_ray, tmp_path_factory):
    import ray.train

    from tests.trainers.ray_train.streams import dataset, read_rows

    folder = tmp_path_factory.mktemp("streamed")
    in_order = ray.data.ExecutionOptions(preserve_order=True)
    config = ray.train.DataConfig(datasets_to_split=["train"], execution_options=in_order)
    fit(read_rows, folder, datasets={"train": dataset(), "whole": dataset()}, dataset_config=config)
    return partial(load, folder)


@pytest.mark.parametrize("way", ["rows", "first"])
def test_each_row_of_a_shard_is_used_once_at_its_weight(streamed, way):
    from tests.trainers.ray_train.streams import EPOCHS, ROWS

    [(ours, balanced), (theirs, _)] = streamed(way)
    assert len(ours) == EPOCHS
    joined = [
        [first + second for first, second in zip(*epoch, strict=True)]
        for epoch in zip(ours, theirs, strict=True)
    ]
    for epoch in joined:
        rows = [index for rows in epoch for index in rows]
        assert len(rows) == len(set(rows))
        # With stop="first", what is left of the other shard is not used.
        assert len(rows) == ROWS if way == "rows" else ROWS / 2 < len(rows) < ROWS
    assert_same(balanced, trained_alone(rows for epoch in joined for rows in epoch))


def test_rows_that_all_workers_read_are_dealt(streamed):
    from tests.trainers.ray_train.streams import EPOCHS, ROWS

    order = list(range(ROWS))
    expected = trained_alone(
        order[begin : begin + TOTAL] for _ in range(EPOCHS) for begin in range(0, ROWS, TOTAL)
    )
    for dealt in streamed("dealt"):
        assert_same(dealt, expected)


def test_batches_of_ray_data_are_refused(streamed):
    for error in streamed("errors"):
        assert error.startswith("data of Ray Data must be what ray.train.get_dataset_shard returns")


def trained_alone(batches: Iterable[list[int]]) -> torch.Tensor:
    """Train in a single process, on the rows of all workers in each iteration."""
    from tests.trainers.ray_train.loops import optimizer_of
    from tests.trainers.ray_train.streams import ROWS

    model, (x, y) = net(torch.float64), data(ROWS, torch.float64).tensors
    optimizer = optimizer_of(model)
    for rows in batches:
        F.cross_entropy(model(x[rows]), y[rows]).backward()
        optimizer.step()
        optimizer.zero_grad()
    return parameters(model)
