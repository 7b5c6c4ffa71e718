"""What every predictor must keep, whatever it believes in.

The suite reads the registry, so a predictor that is added there is tested here. One that is
trained after some hundred iterations is tested twice: as it is, and in a hurry.
"""

import inspect

import numpy as np
import pytest

from evenstep.core import TrainNow
from evenstep.core.rows import SEAL
from evenstep.errors import StateFileError
from evenstep.predictors import PREDICTORS, make_predictor

NAN = float("nan")
NEEDS = {"arima": "statsmodels"}
"""Packages that some predictors are built on, and the core does without."""
IN_A_HURRY = [
    f"{name}:start=30,retrain=25,history=60"
    for name, make in PREDICTORS.items()
    if "start" in inspect.signature(make).parameters
]


def installed(spec):
    """Return the spec, or skip the test where a package is missing."""
    name, _, _ = spec.partition(":")
    if name in NEEDS:
        pytest.importorskip(NEEDS[name])
    return spec


@pytest.fixture(params=[*PREDICTORS, *IN_A_HURRY])
def spec(request):
    return installed(request.param)


@pytest.fixture(params=PREDICTORS)
def name(request):
    return installed(request.param)


def teach(predictor, speeds, usage=None, train=True):
    """Run iterations as a balancer would: predict, observe, train; return the predictions."""
    trainer = TrainNow()
    speeds = np.asarray(speeds, dtype=float)
    usage = np.full((2, *speeds.shape), 0.8) if usage is None else usage
    predictions = []
    for speed, cpu, memory in zip(speeds, *usage, strict=True):
        predictions.append(predictor.predict(cpu, memory))
        predictor.observe(speed, cpu, memory)
        if train:
            trainer.poll(predictor)
    assert trainer.failure is None
    return np.array(predictions)


def noisy(num_iterations, speeds, seed=0):
    """Return speeds that follow the CPU share, with noise, and the usage."""
    rng = np.random.default_rng(seed)
    usage = rng.uniform(0.4, 1.0, (2, num_iterations, len(speeds)))
    return speeds * usage[0] * np.exp(0.05 * rng.standard_normal(usage[0].shape)), usage


def now(predictor, cpu=0.8, memory=0.8):
    """Return the predictions under a usage that is the same for all workers."""
    n = predictor.num_workers
    return predictor.predict(np.full(n, cpu), np.full(n, memory))


def assert_usable(predictions, num_workers):
    assert predictions.shape[-1] == num_workers
    assert predictions.dtype == np.float64
    assert np.isfinite(predictions).all()
    assert (predictions > 0).all()


def assert_same_state(one, other):
    assert one.keys() == other.keys()
    for key in one:
        np.testing.assert_array_equal(one[key], other[key], err_msg=key)


@pytest.mark.parametrize("n", [1, 50])
def test_prediction_before_any_observation_is_usable_and_takes_all_workers_to_be_alike(name, n):
    predictor = make_predictor(name, n)
    assert predictor.num_workers == n
    for cpu, memory in ((1.0, 1.0), (0.0, 0.0)):
        predictions = now(predictor, cpu, memory)
        assert_usable(predictions, n)
        assert np.unique(predictions).shape == (1,)


ROUNDS = np.arange(60)
EXTREMES = {
    "tiny": np.full(60, 1e-6),
    "huge": np.full(60, 1e6),
    "sudden jumps": np.where(ROUNDS % 7, 1e-6, 1e6),
    "one jump down": np.where(ROUNDS < 30, 1e6, 1e-6),
    "one jump up": np.where(ROUNDS < 30, 1e-6, 1e6),
    "single spikes": np.where(ROUNDS % 10, 50.0, 1e6),
    "wild": np.exp(np.random.default_rng(3).uniform(-14, 14, 60)),
}


@pytest.mark.parametrize("series", EXTREMES.values(), ids=EXTREMES)
def test_prediction_is_usable_after_extreme_speeds(spec, series):
    rng = np.random.default_rng(0)
    predictor = make_predictor(spec, 2)
    usage = rng.choice([0.0, 0.01, 0.5, 1.0], (2, len(series), 2))
    assert_usable(teach(predictor, np.column_stack((series, series[::-1])), usage), 2)
    for cpu, memory in ((0.0, 0.0), (1.0, 1.0), (0.0, 1.0), (1.0, 0.0)):
        assert_usable(now(predictor, cpu, memory), 2)


@pytest.mark.parametrize("long", [False, True])
def test_constant_speed_is_predicted(spec, long):
    predictor = make_predictor(spec, 3)
    num_iterations = 25 if not long else 70 if spec in IN_A_HURRY else 620
    constant = np.array([0.003, 60.0, 4e5])
    assert_usable(teach(predictor, np.tile(constant, (num_iterations, 1))), 3)
    np.testing.assert_allclose(now(predictor), constant, rtol=0.02)


def test_predicting_changes_nothing(spec):
    predictor = make_predictor(spec, 2)
    speeds, usage = noisy(40, [20.0, 60.0])
    teach(predictor, speeds, usage)
    before = predictor.state()
    cpu, memory = np.array([0.5, 0.9]), np.array([0.3, 0.7])
    first = predictor.predict(cpu, memory)
    kept = first.copy()
    np.testing.assert_array_equal(predictor.predict(cpu, memory), first)
    assert (cpu.tolist(), memory.tolist()) == ([0.5, 0.9], [0.3, 0.7])
    assert_same_state(predictor.state(), before)
    first *= 0.0
    np.testing.assert_array_equal(predictor.predict(cpu, memory), kept)


def test_observing_leaves_what_it_is_given_untouched(spec):
    predictor = make_predictor(spec, 3)
    given = np.array([[20.0, NAN, 60.0], [0.5, 0.6, 0.9], [0.3, 0.4, 0.7]])
    for _ in range(10):
        predictor.observe(*given)
    np.testing.assert_array_equal(given, [[20.0, NAN, 60.0], [0.5, 0.6, 0.9], [0.3, 0.4, 0.7]])
    kept = predictor.state()
    given *= 2
    assert_same_state(predictor.state(), kept)


def test_iteration_without_observations_teaches_nothing(spec):
    predictor = make_predictor(spec, 2)
    speeds, usage = noisy(40, [20.0, 60.0])
    teach(predictor, speeds, usage)
    before = now(predictor)
    teach(predictor, np.full((5, 2), NAN), train=False)
    np.testing.assert_array_equal(now(predictor), before)


def test_worker_without_an_observation_is_skipped_and_the_others_learn(spec):
    predictor = make_predictor(spec, 2)
    speeds, usage = noisy(40, [20.0, 60.0])
    teach(predictor, speeds, usage)
    before = now(predictor)
    teach(predictor, np.tile([NAN, 90.0], (20, 1)), train=False)
    after = now(predictor)
    assert after[0] == before[0]
    np.testing.assert_allclose(after[1], 90.0, rtol=0.1)


def test_worker_never_seen_is_like_the_median_of_the_others(name):
    predictor = make_predictor(name, 4)
    speeds, usage = noisy(20, [10.0, 20.0, 60.0, 1.0])
    speeds[:, 3] = NAN
    assert_usable(teach(predictor, speeds, usage), 4)
    predictions = now(predictor)
    assert predictions[3] == np.median(predictions[:3])


def test_restored_state_gives_the_same_predictions(spec):
    original, copy = make_predictor(spec, 3), make_predictor(spec, 3)
    speeds, usage = noisy(65, [10.0, 20.0, 60.0])
    speeds[:55, 2] = NAN
    teach(original, speeds[:50], usage[:, :50])
    copy.restore(original.state())
    assert_same_state(copy.state(), original.state())
    rest = (speeds[50:], usage[:, 50:])
    np.testing.assert_array_equal(teach(copy, *rest), teach(original, *rest))
    assert_same_state(copy.state(), original.state())


def test_restored_state_belongs_to_who_took_it_up(spec):
    original, copy = make_predictor(spec, 2), make_predictor(spec, 2)
    speeds, usage = noisy(65, [10.0, 20.0])
    teach(original, speeds[:40], usage[:, :40])
    saved = original.state()
    copy.restore(saved)
    before = {key: array.copy() for key, array in saved.items()}
    teach(copy, speeds[40:], usage[:, 40:])
    assert_same_state(original.state(), before)
    assert_same_state(saved, before)


def test_members_that_stay_keep_what_was_learned(spec):
    predictor = make_predictor(spec, 3)
    speeds, usage = noisy(40, [10.0, 20.0, 60.0])
    teach(predictor, speeds, usage)
    before = now(predictor)
    predictor.remap(np.array([2, -1, 0]))
    after = now(predictor)
    assert (after[0], after[2]) == (before[2], before[0])
    assert before[0] < after[1] < before[2]
    predictor.remap(np.array([2, 0]))
    assert now(predictor).tolist() == [before[0], before[2]]
    speeds, usage = noisy(40, [10.0, 60.0], seed=1)
    assert_usable(teach(predictor, speeds, usage), 2)


def test_newcomer_is_like_the_median_of_the_others(name):
    predictor = make_predictor(name, 3)
    speeds, usage = noisy(20, [10.0, 20.0, 60.0])
    teach(predictor, speeds, usage)
    before = now(predictor)
    predictor.remap(np.array([2, -1, 0, 1]))
    assert now(predictor).tolist() == [before[2], np.median(before), before[0], before[1]]


def test_newcomers_are_learned_like_the_first_members(name):
    predictor, fresh = make_predictor(name, 1), make_predictor(name, 1)
    speeds, usage = noisy(40, [10.0])
    teach(predictor, 6 * speeds, usage)
    predictor.remap(np.array([-1]))
    np.testing.assert_allclose(
        teach(predictor, speeds[:20], usage[:, :20]),
        teach(fresh, speeds[:20], usage[:, :20]),
        rtol=1e-9,
    )


def test_memory_is_bounded(name):
    predictor, trainer = make_predictor(name, 1), TrainNow()
    speeds, usage = noisy(3000, [20.0])
    shapes = []
    for k, row in enumerate(zip(speeds, *usage, strict=True), 1):
        predictor.observe(*row)
        trainer.poll(predictor)
        if k % 1000 == 0:
            shapes.append({key: array.shape for key, array in predictor.state().items()})
    assert shapes[2] == shapes[1]


def test_workers_are_predicted_independently_and_in_one_call(name):
    """Fifty at once are the same as fifty alone, as long as no model is shared."""
    base = np.linspace(5.0, 200.0, 50)
    speeds, usage = noisy(12, base)
    speeds[::3, 7] = NAN
    together = make_predictor(name, 50)
    assert_usable(teach(together, speeds, usage), 50)
    for i in (0, 7, 23, 49):
        alone = make_predictor(name, 1)
        teach(alone, speeds[:, i : i + 1], usage[:, :, i : i + 1])
        np.testing.assert_allclose(now(alone)[0], now(together)[i], rtol=1e-9)


def damages(state):
    """Yield the ways in which a saved state may be damaged or foreign."""
    yield "nothing in it", {}
    for key, array in state.items():
        if key.endswith(SEAL):
            # Earlier versions had none.
            continue
        yield f"{key} missing", {k: a for k, a in state.items() if k != key}
        yield f"{key} of another shape", {**state, key: array[..., None]}
        yield f"{key} of text", {**state, key: np.full(array.shape, "text")}
        if array.dtype.kind == "f" and array.size:
            yield f"{key} infinite", {**state, key: np.full(array.shape, np.inf)}


def test_damaged_state_is_refused_and_changes_nothing(spec):
    predictor, other = make_predictor(spec, 3), make_predictor(spec, 3)
    speeds, usage = noisy(40, [10.0, 20.0, 60.0])
    teach(predictor, speeds, usage)
    teach(other, speeds[::-1], usage[:, ::-1])
    before = predictor.state()
    for what, damaged in damages(other.state()):
        try:
            predictor.restore(damaged)
        except StateFileError:
            pass
        else:
            pytest.fail(f"{what}: taken up")
        assert_same_state(predictor.state(), before)


def test_state_of_another_number_of_workers_is_refused(spec):
    predictor, other = make_predictor(spec, 3), make_predictor(spec, 2)
    for some in (predictor, other):
        speeds, usage = noisy(40, np.arange(10.0, 10.0 + some.num_workers))
        teach(some, speeds, usage)
    before = predictor.state()
    with pytest.raises(StateFileError):
        predictor.restore(other.state())
    assert_same_state(predictor.state(), before)


def test_state_with_impossible_numbers_is_refused_or_does_no_harm(spec):
    speeds, usage = noisy(40, [10.0, 20.0])
    predictor = make_predictor(spec, 2)
    teach(predictor, speeds, usage)
    state = predictor.state()
    for key, array in state.items():
        if array.dtype.kind not in "fi" or not array.size:
            continue
        for factor in (-1, 0):
            victim = make_predictor(spec, 2)
            try:
                victim.restore({**state, key: array * factor})
            except StateFileError:
                continue
            assert_usable(teach(victim, speeds[:8], usage[:, :8]), 2)
