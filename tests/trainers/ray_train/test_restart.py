"""A worker that dies is restarted by Ray, and the training continues from its checkpoint."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from evenstep.core.stock_order import stock_order
from tests.trainers.comparing import NUM_WORKERS, TOTAL, assert_same
from tests.trainers.ray_train.local import fit, load

pytestmark = pytest.mark.timeout(300)


def test_training_with_a_death_is_the_stock_training_without_one(local_ray, tmp_path):
    from tests.trainers.ray_train.loops import EPOCHS, ITERATIONS, SAMPLES
    from tests.trainers.ray_train.restarting import FATAL, SAVED, train_and_die

    result = fit(train_and_die, tmp_path, max_failures=1)
    assert (tmp_path / "died").exists() and result.error is None

    [stock, _] = load(tmp_path, "stock")
    for parameters in load(tmp_path, "balanced"):
        assert_same(parameters, stock)

    saved, fatal = (ITERATIONS * epoch + iteration for epoch, iteration in (SAVED, FATAL))
    before, after = (samples_of(tmp_path, attempt) for attempt in ("before", "after"))
    assert list(before) == list(range(fatal + 1))
    assert list(after) == list(range(saved + 1, ITERATIONS * EPOCHS))
    for epoch in range(EPOCHS):
        order = stock_order(SAMPLES, 0, epoch).tolist()
        # The sampler repeats one sample, so that their number is even.
        order += order[:1]
        for i in range(ITERATIONS):
            expected = sorted(order[i * TOTAL : (i + 1) * TOTAL])
            for attempt in (before, after):
                assert attempt.get(ITERATIONS * epoch + i, expected) == expected

    assert result.metrics["evenstep/iteration_time"] > 0
    assert 0 <= result.metrics["evenstep/waiting_share"] < 1
    sizes = [value for name, value in result.metrics.items() if "/batch_size/" in name]
    assert len(sizes) == NUM_WORKERS


def samples_of(folder: Path, attempt: str) -> dict[int, list[int]]:
    """Return the samples of both workers together, by iteration."""
    joined: dict[int, list[int]] = {}
    for worker in range(NUM_WORKERS):
        lines = (folder / f"samples-{worker}-{attempt}").read_text().splitlines()
        for iteration, samples in map(json.loads, lines):
            joined.setdefault(iteration, []).extend(samples)
    return {iteration: sorted(samples) for iteration, samples in joined.items()}
