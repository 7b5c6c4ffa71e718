"""Damaged states: copies of a saved state with one change each, and what must become of them."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from evenstep.core.rows import SEAL, sealed
from evenstep.errors import EvenstepError

LARGE = [2**53, 2**62, 10**20, 10**400, 10**5000, 1e308, -1e308]
NUMBERS = [0, -1, 99, 0.5, math.nan, math.inf, *LARGE]
OTHER_TYPES = [None, "text", b"text", [], {}, [1, [2]], 1.5, True, object()]
COUNT = 400
"""Damaged copies that a test tries, at least."""


def damaged(state: Any, count: int = COUNT, seed: int = 0) -> Iterator[tuple[str, Any]]:
    """Yield copies of a state, all different from it, and what was changed."""
    rng = np.random.default_rng(seed)
    paths = list(_paths(state))
    for _ in range(count):
        while True:
            changed = copy.deepcopy(state)
            path = paths[rng.integers(len(paths))]
            what = _change(changed, path, rng)
            if not same(changed, state):
                break
        yield f"{'/'.join(map(str, path))}: {what}", changed


def resealed(state: Any) -> Any:
    """Return a state with the seals of what it has now."""
    if isinstance(state, list):
        return [resealed(inner) for inner in state]
    if not isinstance(state, dict):
        return state
    state = {name: resealed(inner) for name, inner in state.items()}
    ends = [name for name in state if isinstance(name, str) and f".{name}".endswith(f".{SEAL}")]
    groups: dict[str, dict[str, Any]] = {name.removesuffix(SEAL): {} for name in ends}
    for name, inner in state.items():
        of = [prefix for prefix in groups if str(name).startswith(prefix)]
        if of and name not in ends:
            groups[max(of, key=len)][str(name).removeprefix(max(of, key=len))] = inner
    for prefix, group in groups.items():
        try:
            # The parts of a planner are sealed as arrays, also where they are saved as lists.
            of_arrays = (
                {name: np.asarray(inner) for name, inner in group.items()} if prefix else group
            )
            seal = sealed(of_arrays)[SEAL]
        except ValueError:
            # A list that is no array, or a number of so many digits that no file would have it.
            continue
        plain = state[prefix + SEAL]
        state[prefix + SEAL] = np.array(seal) if isinstance(plain, np.ndarray) else seal
    return state


def check_refused(
    state: Any,
    load: Callable[[Any], object],
    look: Callable[[], Any],
    count: int = COUNT,
    seed: int = 0,
) -> None:
    """Check that every damaged state is refused and changes nothing, or changes what `state` does.

    `look` returns everything that is to be seen of the owner, first of all its own state.
    """
    own = look()[0]
    load(state)
    expected = look()
    load(own)
    before = look()
    assert not same(before, expected)
    refused = 0
    for what, changed in damaged(state, count, seed):
        if is_refused(load, changed):
            refused += 1
            assert same(look(), before), what
        else:
            assert same(look(), expected), what
            load(own)
    # What is not refused has lost nothing but a seal, or has an unknown field more.
    assert refused > count / 2


def is_refused(load: Callable[..., object], *state: Any) -> bool:
    """Load a state, and return whether it is refused; any other error is one."""
    try:
        load(*state)
    except EvenstepError:
        return True
    return False


def same(one: Any, other: Any) -> bool:
    """Whether two states are the same, in types too."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if type(one) is not type(other):
        return False
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    if hasattr(one, "dtype"):
        ours, theirs = np.asarray(one), np.asarray(other)
        return (
            ours.dtype == theirs.dtype
            and ours.shape == theirs.shape
            and (ours.tobytes() == theirs.tobytes() or bool(np.array_equal(ours, theirs)))
        )
    return bool(one == other or (one != one and other != other))


def _paths(state: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield where every value of a state is; of a long list, where some are."""
    if isinstance(state, Mapping):
        keys = list(state)
    elif isinstance(state, list):
        keys = list(range(len(state)))[:: max(1, len(state) // 8)]
    else:
        return
    for key in keys:
        yield (*path, key)
        yield from _paths(state[key], (*path, key))


def _change(state: Any, path: tuple[Any, ...], rng: np.random.Generator) -> str:
    """Change one value of a state, and return how."""
    owner = state
    for key in path[:-1]:
        owner = owner[key]
    key, value = path[-1], owner[path[-1]]
    kind = rng.choice(["delete", "type", "value", "value", "value", "swap", "add"])
    if kind == "delete":
        del owner[key]
    elif kind == "type":
        owner[key] = OTHER_TYPES[rng.integers(len(OTHER_TYPES))]
    elif kind == "swap":
        keys = list(owner) if isinstance(owner, dict) else list(range(len(owner)))
        other = keys[rng.integers(len(keys))]
        owner[key], owner[other] = owner[other], owner[key]
    elif kind == "add" and isinstance(owner, dict):
        owner["unknown"] = value
    else:
        owner[key] = _other_value(value, rng)
    return str(kind)


def _other_value(value: Any, rng: np.random.Generator) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, (int, float)):
        near: list[Any] = [value + 1, -value, 2 * value + 1, *NUMBERS]
        return near[rng.integers(len(near))]
    if isinstance(value, str):
        return [value + "x", "", value[: len(value) // 2], value.upper()][rng.integers(4)]
    if isinstance(value, list):
        others = [value[: len(value) // 2], value[::-1], value * 2, value[1:], [value]]
        return others[rng.integers(len(others))]
    if isinstance(value, dict):
        return dict(list(value.items())[: len(value) // 2])
    if isinstance(value, np.ndarray):
        return _other_array(value.copy(), rng)
    if hasattr(value, "flatten") and hasattr(value, "numpy"):
        other = _other_array(value.numpy().copy(), rng)
        return value.new_tensor(other) if other.dtype == value.numpy().dtype else value.double()
    return 7


def _other_array(array: Any, rng: np.random.Generator) -> Any:
    flat = array.reshape(-1)
    kind = rng.integers(6)
    if kind == 0 or not flat.size:
        return array[..., None]
    if kind == 1:
        return flat[: flat.size // 2]
    if kind == 2:
        return flat[::-1].reshape(array.shape).copy()
    if kind == 3:
        other = {"f": np.int32, "i": np.float64, "u": np.float64, "b": np.int64}.get(
            array.dtype.kind, "U9"
        )
        return (
            np.nan_to_num(array).astype(other) if array.dtype.kind == "f" else array.astype(other)
        )
    at = rng.integers(flat.size)
    if array.dtype.kind == "f":
        largest = np.finfo(array.dtype).max / 2
        flat[at] = [np.nan, np.inf, -1.0, largest, flat[at] + 1][rng.integers(5)]
    elif array.dtype.kind == "i":
        flat[at] = [-1, 2**62, flat[at] + 1, 0][rng.integers(4)]
    elif array.dtype.kind == "u":
        flat[at] ^= 1
    elif array.dtype.kind == "b":
        flat[at] = not flat[at]
    else:
        return np.array(f"{array}x")
    return array
