"""Saved states that were damaged: refused as a whole, whatever was changed in them.

A state carries a digest, so every change of it is found. Where somebody has sealed a changed state
again, it is refused if it cannot be true, and otherwise usable.
"""

import json
import pickle
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evenstep.core import Plan, Reports
from evenstep.core.archive import write_archive
from evenstep.core.planner import Planner
from evenstep.core.rows import SEAL, check_seal, sealed
from evenstep.errors import EvenstepError, InvalidSetting, PartitionError, StateFileError
from evenstep.partitions.handover.giver import GiverRecord
from evenstep.partitions.handover.receiver import ReceiverRecord
from evenstep.partitions.rules.traversals import ReadingPosition
from evenstep.partitions.store.index import FILE, read_index, write_index
from evenstep.policies import POLICIES, make_policy
from evenstep.predictors import PREDICTORS, make_predictor
from evenstep.training.checkpoint import SavedBalancer, save_plan, saved_sizes
from evenstep.training.epochs import Epochs
from evenstep.training.loop import Loop, batches
from evenstep.training.loop_setup import make_loop
from tests.conformance.test_predictors import (
    IN_A_HURRY,
    assert_usable,
    installed,
    noisy,
    now,
    teach,
)
from tests.damaged import check_refused, damaged, is_refused, resealed, same
from tests.partitions.store.folders import three_partitions
from tests.training.threads import ThreadCollective, together
from tests.training.timers import SpeedTimer

OLD = json.loads((Path(__file__).parent.parent / "training" / "old_checkpoint.json").read_text())
"""As a version without seals wrote it: two workers, a total of 12, Epochs(100, 12, seed=3)."""

STATE: dict[str, Any] = {
    "epoch": 3, "speeds": [1.5, float("nan"), -0.0], "names": ["a", "ä"], "none": None, "on": True,
    "array": np.arange(6.0).reshape(2, 3), "inner": {"1": 2**70, "bytes": b"x", "none": []},
}  # fmt: skip


def test_seal_fits_a_copy_however_it_was_stored():
    state = sealed(STATE)
    check_seal("a test", pickle.loads(pickle.dumps(state)))
    plain = sealed({name: STATE[name] for name in ("epoch", "speeds", "names", "none", "on")})
    check_seal("a test", json.loads(json.dumps(plain)))
    check_seal("a test", {name: plain[name] for name in reversed(plain)})
    # NaN may have lost its sign.
    check_seal("a test", {**state, "speeds": [1.5, -float("nan"), -0.0]})
    arrays = [sealed({"past": np.array([1.0, nan])}) for nan in (np.nan, -np.nan)]
    assert arrays[0][SEAL] == arrays[1][SEAL]
    assert sealed(state)[SEAL] == state[SEAL]


def test_every_change_breaks_the_seal():
    state = sealed(STATE)
    for what, changed in damaged(state):
        if SEAL in changed:
            with pytest.raises(StateFileError):
                check_seal("a test", changed)
        else:
            assert what.startswith(SEAL)


def test_state_of_a_later_version_says_so():
    with pytest.raises(StateFileError, match="must be 1, got 2: it was made by another version"):
        check_seal("a loader", {"epoch": 3, SEAL: "2:abc"})


@pytest.fixture(params=[*PREDICTORS, *IN_A_HURRY])
def predictors(request):
    """Two predictors of a kind that have learned different things."""
    pair = [make_predictor(installed(request.param), 3) for _ in range(2)]
    speeds, usage = noisy(80, [10.0, 20.0, 60.0])
    teach(pair[0], speeds[:70], usage[:, :70])
    teach(pair[1], speeds[::-1], usage[:, ::-1])
    return pair


def test_predictor_refuses_a_damaged_state(predictors):
    predictor, other = predictors
    check_refused(other.state(), predictor.restore, lambda: (predictor.state(), now(predictor)))


def test_predictor_refuses_or_can_use_a_state_that_was_sealed_again(predictors):
    predictor, other = predictors
    own = predictor.state()
    for what, changed in damaged(other.state(), seed=1):
        if is_refused(predictor.restore, resealed(changed)):
            assert same(predictor.state(), own), what
        else:
            with np.errstate(all="ignore"):
                assert_usable(now(predictor), 3)
                predictor.observe(np.array([10.0, 20.0, 60.0]), np.full(3, 0.8), np.full(3, 0.8))
                assert_usable(now(predictor), 3)
            predictor.restore(own)


def planned(policy: str, speeds: list[float], iterations: int) -> Planner:
    """Return a planner that has learned from some iterations."""
    made = make_policy(policy)
    workers = ["a", "b", "c", "d"][: len(speeds)]
    predictor = make_predictor("ema", len(workers)) if made.uses_speeds else None
    planner = Planner(workers, 60, made, predictor)
    v, ones = np.array(speeds), np.ones(len(speeds))
    for k in range(iterations):
        x = np.maximum(planner.plan.sizes, 1)
        planner.decide(Reports(k + 1, x, x / v, 0.8 * ones, 0.8 * ones, 0.3 * ones, speeds=v))
    planner.renumber(100 + iterations, iterations)
    return planner


@pytest.mark.parametrize(
    "policy", ["static:shares=1/2/3" if p == "static" else p for p in POLICIES]
)
def test_planner_refuses_a_damaged_state(policy):
    planner, other = planned(policy, [10, 30, 20], 12), planned(policy, [40, 30, 5], 20)

    def look() -> Any:
        return planner.state(), planner.plan.sizes, planner.plan.number, planner.total

    check_refused(other.state(), planner.restore, look)


@pytest.mark.parametrize("policy", [policy for policy in POLICIES if policy != "static"])
def test_planner_of_other_workers_refuses_or_keeps_the_total(policy):
    state, workers = planned(policy, [40, 30, 5], 20).state(), ["b", "a", "x"]
    planner = planned(policy, [10, 30, 20, 5], 12)
    own = planner.state()
    for what, changed in damaged(state, seed=2):
        if is_refused(planner.restore, resealed(changed), workers):
            assert same(planner.state(), own), what
        else:
            assert int(planner.plan.sizes.sum()) == 60, what
            assert planner.plan.sizes.min() >= 0
            planner.restore(own)


LOOPS: list[Loop] = []


@pytest.fixture(autouse=True)
def close_loops() -> Iterator[None]:
    yield
    while LOOPS:
        LOOPS.pop().close()


def balanced(collective: ThreadCollective, iterations: int = 5, **settings: Any) -> Loop:
    """Return the loop of a worker after some iterations."""
    loop = make_loop(
        collective, 12, framework="threads", summary=False, name=f"w{collective.worker}",
        timer=SpeedTimer((2.0, 1.0)[collective.worker]), **settings,
    )  # fmt: skip
    LOOPS.append(loop)
    for k, _ in enumerate(batches(loop, Epochs(1000, 12))):
        loop.finish()
        loop.take(loop.collective.everybody(loop.slots().ravel().astype(np.float64)).sum(axis=0))
        if k + 1 == iterations:
            break
    return loop


def seen_of(loop: Loop) -> Any:
    return loop.state_dict(), loop.iteration, loop.total, loop.plan.sizes, loop.newest_plan.number


@pytest.mark.parametrize("policy", [p for p in POLICIES if p not in ("static", "even")])
def test_balancer_refuses_a_damaged_checkpoint(policy):
    loop, _ = together(2, partial(balanced, policy=policy))
    other, _ = together(2, partial(balanced, policy=policy, iterations=40))
    state = json.loads(json.dumps(other.state_dict()))
    check_refused(state, loop.load_state_dict, partial(seen_of, loop))


def test_balancer_refuses_a_checkpoint_that_was_sealed_again_or_keeps_its_total():
    loop, _ = together(2, balanced)
    other, _ = together(2, partial(balanced, iterations=40))
    own, before = loop.state_dict(), seen_of(loop)
    for what, changed in damaged(other.state_dict(), count=1000):
        if is_refused(loop.load_state_dict, resealed(changed)):
            assert same(seen_of(loop), before), what
        else:
            assert (loop.total, int(loop.newest_plan.sizes.sum())) == (12, 12), what
            assert loop.iteration >= 0
            loop.load_state_dict(own)


def test_sizes_of_a_coordinator_are_refused_if_they_are_damaged_or_keep_the_total():
    plan = Plan(7, 40, np.array([8, 4]), "proportional")
    reports = replace(Reports.silent(41, 2), speeds=np.array([2.0, 1.0]))
    state = save_plan(plan, ("w0", "w1"), reports, 41)
    for sealing, seed in ((sealed, 0), (resealed, 1)):
        for what, changed in damaged(sealed(state), seed=seed):
            try:
                saved = SavedBalancer.of(sealing(changed) if seed else changed, "sizes")
                sizes = saved_sizes(saved, ("w1", "w0"), 12)
            except EvenstepError:
                continue
            assert sizes is None or (int(sizes.sum()) == 12 and sizes.min() >= 0), what
            assert seed or (sizes is not None and sizes.tolist() == [4, 8]), what
            assert saved.last_reports(("w0", "w1")).num_workers == 2


def test_balancer_and_loader_continue_a_checkpoint_without_seals():
    loop, _ = together(2, partial(balanced, policy="equal_finish"))
    loop.load_state_dict(OLD["balancer"])
    assert (loop.iteration, loop.newest_plan.sizes.tolist()) == (5, [8, 4])
    epochs, whole = (Epochs(100, 12, seed=3, num_workers=2) for _ in range(2))
    epochs.load_state_dict(OLD["loader"])
    assert rest_of(epochs) == sorted(whole.order_of(0)[60:].tolist())
    # The fields that it has are checked.
    for field, value, problem in [
        ("position", 99, "offset of a saved loader must be a whole number >= 99, got 60"),
        ("offset", 990, "offset of a saved loader must be at most 111, got 990"),
        ("offset", 3, "offset of a saved loader must be a whole number >= 5, got 3"),
    ]:
        with pytest.raises(StateFileError) as caught:
            epochs.load_state_dict({**OLD["loader"], field: value})
        assert str(caught.value) == problem


def rest_of(epochs: Epochs) -> list[int]:
    """Return the samples of all workers in the rest of an epoch."""
    seen: list[int] = []
    while (one := epochs.deal(np.array([5, 7]), 0)) is not None:
        other = epochs.deal(np.array([5, 7]), 1)
        assert other is not None
        seen += [*one.samples.tolist(), *other.samples.tolist()]
        epochs.advance()
    return sorted(seen)


def positioned(position: int) -> Epochs:
    """Return epochs after some iterations."""
    epochs = Epochs(100, 12, seed=3, num_workers=2)
    epochs.deal(np.array([5, 7]), 0)
    for _ in range(position):
        epochs.advance()
    return epochs


def test_loader_refuses_a_damaged_checkpoint():
    epochs = positioned(6)

    def look() -> Any:
        dealt = epochs.deal(np.array([5, 7]), 1)
        return epochs.state_dict(), None if dealt is None else dealt.samples, len(epochs)

    state = json.loads(json.dumps(positioned(3).state_dict()))
    check_refused(state, epochs.load_state_dict, look, count=800)


def test_loader_refuses_a_position_beyond_the_epoch():
    epochs = Epochs(100, 10)
    state = {**epochs.state_dict(), "position": 4, "offset": 40}
    epochs.load_state_dict(sealed(state))
    before = epochs.state_dict()
    cases: list[tuple[dict[str, Any], str]] = [
        ({"position": 99}, "position of a saved loader must be at most 10, got 99"),
        ({"position": 5}, "offset of a saved loader must be 50 after 5 iterations of 10, got 40"),
        ({"offset": 50}, "offset of a saved loader must be 40 after 4 iterations of 10, got 50"),
        ({"offset": 110}, "offset of a saved loader must be at most 100, got 110"),
        ({"position": -1}, "position of a saved loader must be a whole number >= 0, got -1"),
        ({"epoch": 1.5}, "epoch of a saved loader must be a whole number >= 0, got 1.5"),
        ({"total": 0}, "total of a saved loader must be a whole number >= 1, got 0"),
    ]
    for changes, message in cases:
        with pytest.raises(StateFileError) as caught:
            epochs.load_state_dict(sealed({**state, **changes}))
        assert str(caught.value) == message
        with pytest.raises(StateFileError, match="the checkpoint is damaged: "):
            epochs.load_state_dict({**sealed(state), **changes})
        assert epochs.state_dict() == before


def test_loader_names_everything_that_does_not_fit():
    state = positioned(3).state_dict()
    with pytest.raises(InvalidSetting) as caught:
        Epochs(90, 12, seed=4, shuffle=False, num_workers=2).load_state_dict(state)
    assert str(caught.value) == (
        "the loader's seed must be that of the checkpoint, 3, got 4; the loader's dataset length "
        "must be that of the checkpoint, 100, got 90 in mid-epoch; the loader's shuffle must be "
        "that of the checkpoint, True, got False in mid-epoch"
    )


def test_loader_continues_a_checkpoint_of_other_workers_at_any_position():
    for position in range(10):
        state = positioned(position).state_dict()
        for num_workers in range(1, 6):
            epochs = Epochs(100, 12, seed=3, num_workers=num_workers)
            epochs.load_state_dict(state)
            assert rest_of(epochs) == sorted(epochs.order_of(0)[12 * position :].tolist())


def test_loader_refuses_or_finishes_the_epoch_of_a_checkpoint_that_was_sealed_again():
    epochs = positioned(6)
    own = epochs.state_dict()
    for what, changed in damaged(positioned(3).state_dict(), count=1000):
        if is_refused(epochs.load_state_dict, resealed(changed)):
            assert same(epochs.state_dict(), own), what
        else:
            offset = epochs.offset
            assert epochs.position == -(-offset // 12) or changed.get("one total") is not True, what
            left = epochs.order_of(epochs.epoch)[offset:].tolist()
            assert rest_of(epochs) == sorted(left), what
            epochs.load_state_dict(own)


def test_position_in_partitions_refuses_a_damaged_state():
    state = ReadingPosition.of([30, 20], [7, -8]).advance(np.array([40, 10])).state()
    for what, changed in damaged(state):
        try:
            position = ReadingPosition.restored(changed)
        except EvenstepError:
            continue
        assert position.sizes.min() >= 1 and position.consumed.min() >= 0, what
        assert len(position.sizes) == len(position.digests) == len(position.consumed)
        assert position.first >= 0


def test_partition_refuses_a_damaged_index(tmp_path):
    folder = three_partitions(tmp_path)[0]
    index = read_index(folder)
    giving = GiverRecord("h", "w1", (0, 1), 10, index.dataset.layout, "given")
    taking = ReceiverRecord("g", "w2", (9,), 10, 80, "staged")
    write_index(folder, replace(index, giver_records={"h": giving}, receiver_records={"g": taking}))
    with np.load(folder / FILE) as archive:
        arrays = {name: archive[name] for name in archive.files if name != "checksum"}
    about = json.loads(str(arrays["about"]))
    rest = {name: arrays[name] for name in ("samples", "block", "row", "format")}
    refused = 0
    for what, changed in damaged({"about": about, **rest}, count=1200):
        try:
            text = json.dumps(changed["about"])
            content = {name: np.asarray(array) for name, array in changed.items()}
            write_archive(folder / FILE, {**content, "about": np.array(text)})
        except (KeyError, TypeError, ValueError):
            # Nothing that could be in a file.
            continue
        try:
            found = read_index(folder)
        except PartitionError:
            refused += 1
            continue
        lengths = np.array([rows for _, rows in found.blocks])
        assert len(found.samples) == len(found.block) == len(found.row), what
        assert np.all((found.row >= 0) & (found.row < lengths[found.block])), what
        assert all("/" not in name for name, _ in found.blocks), what
        assert found.layout.names and len(found.open_records) <= 2, what
    assert refused > 400
