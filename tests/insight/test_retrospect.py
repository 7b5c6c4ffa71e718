"""Looking back: what plain BSP and the optimum would have taken in a run."""

import numpy as np
import pytest

from evenstep.insight.retrospect import look_back
from evenstep.runlog import Event, RunLogBuilder, RunLogParser
from tests.runlog.examples import header, row, text_of

SLOPES = np.array([0.01, 0.03])


def log_of(*records, **changes):
    parser, builder = RunLogParser(), RunLogBuilder()
    for record in parser.feed(text_of(header(**changes), *records)):
        builder.add(record)
    return builder.build()


def rows(sizes, start=0):
    return [row(start + k, x, SLOPES * x) for k, x in enumerate(sizes)]


def test_balanced_run_knows_what_even_sizes_would_have_taken():
    sizes = [[16, 16], [20, 12], [24, 8], [22, 10]] * 5
    estimates = look_back(log_of(*rows(sizes), policy="equal_finish"))
    assert estimates.plain == pytest.approx(np.full(20, 0.48), rel=1e-3)
    assert estimates.optimum == pytest.approx(np.full(20, 0.24), rel=1e-3)


def test_optimum_is_never_above_what_an_iteration_really_took():
    rng = np.random.default_rng(0)
    noisy = [
        row(k, [24, 8], SLOPES * [24, 8] * np.exp(0.3 * rng.standard_normal(2))) for k in range(60)
    ]
    log = log_of(*noisy, policy="equal_finish")
    assert (look_back(log).optimum <= log.iteration_times * (1 + 1e-9)).all()


def test_long_runs_have_an_estimate_for_every_iteration():
    log = log_of(*rows([[16, 16], [20, 12], [24, 8]] * 1000))
    estimates = look_back(log)
    assert estimates.plain.shape == estimates.optimum.shape == (3000,)
    assert np.isfinite(estimates.plain).all()


def test_who_is_alone_takes_what_plain_bsp_and_the_optimum_take():
    alone = log_of(
        *rows([[16, 16]] * 5),
        Event("leave", 5, worker="w1", workers=["w0"]),
        *(row(k, [32], [0.3]) for k in range(5, 9)),
    )
    estimates = look_back(alone)
    assert np.isfinite(estimates.plain[:5]).all()
    assert estimates.plain[5:].tolist() == estimates.optimum[5:].tolist() == [0.3] * 4


def test_where_nothing_can_be_told_there_is_nothing():
    assert np.isnan(look_back(log_of(*rows([[16, 16]] * 2))).plain).all()
    assert look_back(log_of()).plain.shape == (0,)
