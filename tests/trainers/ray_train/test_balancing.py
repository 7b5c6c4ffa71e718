"""Unequal workers of Ray Train finish their iterations together, and report that."""

from __future__ import annotations

import numpy as np
import pytest

from tests.trainers.comparing import SECONDS_PER_SAMPLE, above_the_optimum
from tests.trainers.ray_train.local import fit, load

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def balanced(local_ray, tmp_path_factory):
    from tests.trainers.ray_train.balancing import balance

    folder = tmp_path_factory.mktemp("balanced")
    result = fit(balance, folder, log=str(folder / "run.jsonl"))
    return folder, result


def test_sizes_are_near_the_optimum_of_the_speeds(balanced):
    from tests.trainers.ray_train.balancing import SETTLED, TOTAL

    [(sizes, _), (others, _)] = load(balanced[0], "sizes")
    assert sizes == others
    assert sizes[0] == [32, 32]
    usual = np.median(sizes[SETTLED:], axis=0).astype(int)
    assert above_the_optimum(usual, TOTAL) <= 1.1


def test_figures_are_means_since_the_last_report(balanced):
    from tests.trainers.ray_train.balancing import TOTAL

    folder, result = balanced
    [(_, reported), (_, of_others)] = load(folder, "sizes")
    for figures in reported:
        sizes = [figures[f"evenstep/batch_size/worker {worker}"] for worker in (0, 1)]
        assert sum(sizes) == pytest.approx(TOTAL)
        for worker, size in enumerate(sizes):
            time = figures[f"evenstep/time/worker {worker}"]
            assert time >= 0.99 * size * SECONDS_PER_SAMPLE[worker]
            waiting = figures[f"evenstep/waiting/worker {worker}"]
            assert time + waiting == pytest.approx(figures["evenstep/iteration_time"])
    assert reported[-1].items() <= result.metrics.items()
    # Worker 0 has the figures of all, and Ray keeps its metrics only.
    assert of_others == [{}, {}]


def test_end_of_the_training_function_closes_the_run_log(balanced):
    log = (balanced[0] / "run.jsonl").read_text().splitlines()
    assert '"end"' in log[-1]
