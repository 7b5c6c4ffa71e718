"""`arima`: fitted by statsmodels, updated by Evenstep."""

import re
import sys
from copy import deepcopy
from typing import Any

import numpy as np
import pytest

from evenstep.errors import InvalidSetting
from evenstep.predictors.arima import Arima
from evenstep.predictors.ema import Ema
from tests.predictors.examples import assert_same_state, observe_all, teach

statsmodels_arima = pytest.importorskip("statsmodels.tsa.arima.model")

QUICK: dict[str, Any] = {"start": 60, "retrain": 40, "history": 80}


def wavy(num_iterations, seed=0):
    """Return speeds around a slow wave, and the usage."""
    rng = np.random.default_rng(seed)
    wave = np.sin(np.arange(num_iterations) / 9)[:, None]
    noise = 0.05 * rng.standard_normal((num_iterations, 2))
    speeds = np.array([60.0, 90.0]) * np.exp(0.3 * wave + noise)
    return speeds, np.ones_like(speeds), np.ones_like(speeds)


def work_of(arima) -> Any:
    return arima.training()


def now(predictor):
    ones = np.ones(predictor.num_workers)
    return predictor.predict(ones, ones)


@pytest.mark.parametrize("order", [(2, 2, 1), (1, 0, 0), (0, 1, 1), (3, 1, 2)])
def test_following_equals_statsmodels_append(order):
    arima = Arima(2, order, start=60, retrain=1000, history=60)
    speeds, cpu, memory = wavy(75)
    predictions = teach(arima, speeds, cpu, memory)
    for i in range(2):
        y = np.log(speeds[:, i]).astype(np.float32).astype(float)
        y -= y[:60].mean()
        model = statsmodels_arima.ARIMA(y[:60], order=order, trend="n")
        found = model.filter(arima.state()["models.parameters"][i])
        for k in range(61, 75):
            expected = found.append(y[60:k]).forecast(1)[0] - y[0]
            np.testing.assert_allclose(
                np.log(predictions[k, i] / speeds[0, i]), expected, atol=1e-5
            )


def test_wave_is_predicted_better_than_by_ema():
    speeds, cpu, memory = wavy(140)
    errors = [
        np.abs(np.log(teach(predictor, speeds, cpu, memory) / speeds)[60:]).mean()
        for predictor in (Arima(2, **QUICK), Ema(2))
    ]
    assert errors[0] < 0.8 * errors[1]


def test_ema_predicts_until_the_first_fit():
    runs = [teach(predictor, *wavy(60)) for predictor in (Arima(2, **QUICK), Ema(2))]
    np.testing.assert_array_equal(*runs)


def test_models_catch_up_with_what_came_while_they_were_fitted():
    arima = Arima(2, start=60, retrain=1000, history=80)
    speeds, cpu, memory = wavy(70)
    speeds[65, 0] = np.nan
    observe_all(arima, speeds[:60], cpu[:60], memory[:60])
    result = work_of(arima)()
    late = deepcopy(arima)
    arima.adopt(result)
    for predictor in (arima, late):
        observe_all(predictor, speeds[60:], cpu[60:], memory[60:])
    late.adopt(result)
    np.testing.assert_allclose(now(late), now(arima), rtol=1e-9)


def test_running_a_fit_twice_gives_the_same():
    arima = Arima(2, **QUICK)
    observe_all(arima, *wavy(60))
    work = work_of(arima)
    once, again = work(), work()
    np.testing.assert_array_equal(once.models.parameters, again.models.parameters)
    np.testing.assert_array_equal(once.models.spaces.state, again.models.spaces.state)


def test_members_that_stay_keep_their_models():
    arima = Arima(2, **QUICK)
    teach(arima, *wavy(70))
    before = now(arima)
    arima.remap(np.array([-1, 1]))
    assert arima.trained.tolist() == [False, True]
    assert now(arima)[1] == before[1]


def test_restored_models_go_on_alike():
    old, new = Arima(2, **QUICK), Arima(2, **QUICK)
    teach(old, *wavy(70))
    new.restore(old.state())
    np.testing.assert_array_equal(teach(new, *wavy(20, seed=1)), teach(old, *wavy(20, seed=1)))
    assert_same_state(new.state(), old.state())


SERIES = {
    "constant": np.full(70, 60.0),
    "ramp": np.linspace(10, 100, 70),
    "doubling": 2.0 ** np.arange(70),
    "step": np.where(np.arange(70) < 50, 60.0, 20.0),
    "one spike": np.where(np.arange(70) == 59, 6000.0, 60.0),
    "alternating": np.where(np.arange(70) % 2, 60.0, 20.0),
}


@pytest.mark.parametrize("series", SERIES.values(), ids=SERIES)
def test_predictions_are_finite_positive_and_near_the_recent_speeds(series):
    arima, ema = Arima(1, **QUICK), Ema(1)
    ones = np.ones((70, 1))
    predictions = teach(arima, series[:, None], ones, ones)
    safe = teach(ema, series[:, None], ones, ones)
    assert ((predictions >= 0.2499 * safe) & (predictions <= 4.001 * safe)).all()
    assert arima.trained.all()


def test_constant_speed_is_predicted():
    arima = Arima(1, **QUICK)
    teach(arima, np.full((70, 1), 60.0), np.ones((70, 1)), np.ones((70, 1)))
    np.testing.assert_allclose(now(arima), 60.0, rtol=1e-5)


@pytest.mark.parametrize("order", [(2, 2), (2, -1, 1), (2, 0.5, 1)])
def test_order_that_is_none_is_refused(order):
    with pytest.raises(
        InvalidSetting, match=rf"^order of arima .*>= 0, got .*{re.escape(str(order[-1]))}"
    ):
        Arima(2, order)


def test_too_few_observations_for_the_order_are_refused():
    with pytest.raises(InvalidSetting, match=r"start of arima must be >= 24 observations .* got 5"):
        Arima(2, start=5)


def test_missing_statsmodels_is_said_with_the_way_out(monkeypatch):
    monkeypatch.setitem(sys.modules, "statsmodels.tsa.arima.model", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'evenstep\[arima\]'"):
        Arima(2)
