"""The retrospect: estimates of a run log, and their lines."""

import numpy as np
import pytest

from evenstep.insight.report.figures import look_back
from tests.runlog.examples import log_of, row

OVERHEADS, SLOPES = np.array([0.1, 0.02]), np.array([0.01, 0.03])
"""Even sizes of 32 take 0.5 s, and the best ones, 22 and 10, 0.32 s."""


def rows(sizes):
    return [row(k, x, OVERHEADS + SLOPES * np.array(x)) for k, x in enumerate(sizes)]


def test_lines_follow_the_sizes_and_never_beat_the_run():
    log = log_of(*rows([(16, 16)] * 4 + [(20, 12)] * 4 + [(22, 10)] * 30), policy="equal_finish")
    back = look_back(log)
    assert back.plain[20:] == pytest.approx(0.5, rel=0.03)
    assert back.optimum[20:] == pytest.approx(0.32, rel=0.03)
    assert (back.optimum <= log.iteration_times * (1 + 1e-9)).all()
    assert back.estimates is not None
    assert back.estimates.plain.value == pytest.approx(0.5, rel=0.03)
    assert back.estimates.optimum.value == pytest.approx(0.32, rel=0.03)


def test_with_even_sizes_plain_bsp_is_the_run_itself():
    log = log_of(*rows([(16, 16)] * 20), policy="even")
    back = look_back(log)
    assert np.array_equal(back.plain, log.iteration_times)
    assert back.estimates is not None and back.estimates.is_even
    assert back.estimates.plain.value == pytest.approx(0.5)


def test_a_single_worker_is_its_own_optimum():
    alone = log_of(*(row(k, [32], [0.2]) for k in range(5)), workers=["w0"])
    back = look_back(alone)
    assert back.plain.tolist() == back.optimum.tolist() == [0.2] * 5
    assert back.estimates is not None and back.estimates.straggler is None


def test_without_iterations_there_is_nothing():
    back = look_back(log_of())
    assert back.estimates is None
    assert back.plain.shape == back.optimum.shape == (0,)
