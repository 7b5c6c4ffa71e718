"""States as rows: members join and leave, and what is saved comes back or is refused."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from evenstep.core import from_arrays, inner_arrays, remap_rows, to_arrays
from evenstep.errors import StateFileError


@dataclass(frozen=True, eq=False)
class Inner:
    seen: Any
    """Bools."""
    count: Any
    """Ints."""


@dataclass(frozen=True, eq=False)
class Outer:
    inner: Inner
    level: Any
    """Floats that are never missing."""
    past: Any
    """Floats, (worker, iteration), that may be."""
    phase: int = 0
    fine: bool = False


def fresh(n: int) -> Outer:
    inner = Inner(np.zeros(n, dtype=bool), np.zeros(n, dtype=np.int64))
    return Outer(inner, np.ones(n), np.full((n, 2), np.nan))


def used() -> Outer:
    inner = Inner(np.array([True, False, True]), np.array([5, 6, 7]))
    past = np.array([[np.nan, 1.0], [2.0, 3.0], [4.0, 5.0]])
    return Outer(inner, np.array([0.1, 0.2, 0.3]), past, phase=4, fine=True)


def assert_same(one: Outer, other: Outer) -> None:
    ours, theirs = to_arrays(one), to_arrays(other)
    assert list(ours) == list(theirs)
    for name, array in ours.items():
        assert array.dtype == theirs[name].dtype
        np.testing.assert_array_equal(array, theirs[name])


def test_rows_follow_their_workers_and_newcomers_start_afresh():
    inner = Inner(np.array([True, False, True, False]), np.array([7, 0, 5, 0]))
    past = np.array([[4.0, 5.0], [np.nan, np.nan], [np.nan, 1.0], [np.nan, np.nan]])
    expected = Outer(inner, np.array([0.3, 1.0, 0.1, 1.0]), past, phase=4, fine=True)
    assert_same(remap_rows(used(), fresh(4), np.array([2, -1, 0, -1])), expected)


def test_remapping_leaves_both_states_as_they_were():
    state, new = used(), fresh(3)
    mapped = remap_rows(state, new, np.array([1, -1, 0]))
    mapped.level[:] = 99.0
    assert_same(state, used())
    assert_same(new, fresh(3))


def test_remapping_twice_is_remapping_once():
    twice = remap_rows(
        remap_rows(used(), fresh(3), np.array([2, 0, 1])), fresh(3), np.array([1, 2, 0])
    )
    assert_same(twice, used())


def test_a_state_of_nothing_stays_nothing():
    assert remap_rows(None, None, np.array([0])) is None
    assert to_arrays(None) == {}
    assert from_arrays(None, {}) is None


def test_arrays_are_named_after_their_place():
    arrays = to_arrays(used())
    assert list(arrays) == ["inner.seen", "inner.count", "level", "past", "phase", "fine", "seal"]
    assert {name: array.shape for name, array in arrays.items()} == {
        "inner.seen": (3,),
        "inner.count": (3,),
        "level": (3,),
        "past": (3, 2),
        "phase": (),
        "fine": (),
        "seal": (),
    }


def test_what_is_saved_comes_back():
    back = from_arrays(fresh(3), to_arrays(used()))
    assert_same(back, used())
    assert type(back.phase) is int
    assert back.fine is True


def test_saved_arrays_are_copies():
    state = used()
    arrays = to_arrays(state)
    back = from_arrays(fresh(3), arrays)
    for array in arrays.values():
        array[...] = 0
    assert_same(state, used())
    assert_same(back, used())


@given(
    past=npst.arrays(np.float64, (3, 2), elements=st.floats(allow_infinity=False)),
    level=npst.arrays(np.float64, 3, elements=st.floats(allow_nan=False, allow_infinity=False)),
)
def test_every_finite_number_comes_back_to_the_last_bit(past, level):
    state = replace(used(), past=past, level=level)
    assert_same(from_arrays(fresh(3), to_arrays(state)), state)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"level": np.ones(4)},
            "saved 'level' must be float64 of shape (3,), got float64 of shape (4,)",
        ),
        (
            {"level": np.ones(3, dtype=np.int64)},
            "saved 'level' must be float64 of shape (3,), got int64 of shape (3,)",
        ),
        (
            {"inner.seen": np.ones(3)},
            "saved 'seen' must be bool of shape (3,), got float64 of shape (3,)",
        ),
        (
            {"inner.count": np.array(["5", "6", "7"])},
            "saved 'count' must be int64 of shape (3,), got <U1 of shape (3,)",
        ),
        (
            {"phase": np.array(0.5)},
            "saved 'phase' must be int64 of shape (), got float64 of shape ()",
        ),
        (
            {"fine": np.array([True])},
            "saved 'fine' must be bool of shape (), got bool of shape (1,)",
        ),
        ({"level": np.array([1.0, np.nan, 1.0])}, "saved 'level' must hold finite numbers"),
        ({"level": np.array([1.0, np.inf, 1.0])}, "saved 'level' must hold finite numbers"),
        ({"past": np.full((3, 2), -np.inf)}, "saved 'past' must hold finite numbers"),
    ],
)
def test_a_damaged_array_is_refused(changes, message):
    with pytest.raises(StateFileError) as caught:
        from_arrays(fresh(3), {**to_arrays(used()), **changes})
    assert str(caught.value) == message


@pytest.mark.parametrize("name", ["inner.seen", "inner.count", "level", "past", "phase", "fine"])
def test_a_missing_array_is_named(name):
    arrays = to_arrays(used())
    del arrays[name]
    own = name.removeprefix("inner.")
    with pytest.raises(StateFileError, match=f"'{own}', got "):
        from_arrays(fresh(3), arrays)


def test_a_state_of_other_numbers_of_workers_is_refused():
    with pytest.raises(StateFileError, match=r"of shape \(4,\), got bool of shape \(3,\)"):
        from_arrays(fresh(4), to_arrays(used()))


def test_inner_arrays_are_only_those_of_that_name():
    arrays = {"a.x": np.ones(1), "a.b.y": np.ones(2), "ab.z": np.ones(3), "a": np.ones(4)}
    assert {name: array.shape for name, array in inner_arrays(arrays, "a").items()} == {
        "x": (1,),
        "b.y": (2,),
    }
