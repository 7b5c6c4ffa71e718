"""Rows: states that are dataclasses of arrays with one row per worker, and the seal when saved.

Policies and predictors keep their state in such dataclasses, so that the same three functions serve
changes of membership, checkpoints and files for all of them. Every saved state carries a seal, by
which damage is found when the state is loaded.
"""

from __future__ import annotations

import hashlib
import json
import reprlib
import zlib
from collections.abc import Mapping
from dataclasses import Field, fields, is_dataclass, replace
from numbers import Integral
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from evenstep.core.arrays import Ints
from evenstep.errors import StateFileError

State = TypeVar("State")
Arrays = dict[str, NDArray[Any]]

SEAL = "seal"
"""The key of the seal in a saved state: the version of the format, and a digest over the rest."""
_FORMAT = "1"


def sealed(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a state with its seal.

    >>> state = sealed({"epoch": 3, "position": 7})
    >>> check_seal("a loader", state)
    >>> check_seal("a loader", {**state, "position": 8})
    Traceback (most recent call last):
    evenstep.errors.StateFileError: the checkpoint is damaged: the state of a loader does not fit \
its digest
    """
    content = {name: value for name, value in state.items() if name != SEAL}
    digest = hashlib.sha256(json.dumps(_plain(content), sort_keys=True).encode())
    return {**content, SEAL: f"{_FORMAT}:{digest.hexdigest()}"}


def check_seal(what: str, state: object) -> None:
    """Raise StateFileError unless a state fits its seal; one of an earlier version has none."""
    if not isinstance(state, Mapping):
        raise StateFileError(f"the state of {what} must be a dict, got a {type(state).__name__}")
    if SEAL not in state:
        return
    seal = str(state[SEAL])
    version = seal.partition(":")[0]
    if version.isdecimal() and version != _FORMAT:
        raise StateFileError(
            f"the format of the state of {what} must be {_FORMAT}, got {version}: it was made by "
            "another version of evenstep"
        )
    try:
        fits = sealed(state)[SEAL] == seal
    except (RecursionError, ValueError):
        # Nested too deep, or a number of thousands of digits: not what was sealed.
        fits = False
    if not fits:
        raise StateFileError(
            f"the checkpoint is damaged: the state of {what} does not fit its digest"
        )


def _plain(value: Any) -> Any:
    """Return a form of a value for JSON, which is the same after the value was saved and loaded.

    A state with a seal counts by its seal; a value of a type that is not known here by its type.
    """
    if isinstance(value, Mapping):
        if SEAL in value:
            return str(value[SEAL])
        return {str(name): _plain(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, bytes):
        return hashlib.sha256(value).hexdigest()
    array = _as_array(value)
    if array is None:
        return type(value).__name__
    if array.dtype.kind in "SUO":
        return _plain(array.tolist())
    if array.dtype.kind == "f" and np.isnan(array).any():
        # There are many bit patterns of NaN, and not every format keeps them.
        array = np.where(np.isnan(array), array.dtype.type(np.nan), array)
    # A manager saves megabytes of history while workers wait: a checksum takes a tenth of the time.
    return [array.dtype.str, *array.shape, zlib.crc32(array.tobytes())]


def _as_array(value: Any) -> NDArray[Any] | None:
    """Return a numpy array or scalar, or a tensor, as an array; None for anything else."""
    if hasattr(value, "detach") and hasattr(value, "cpu"):
        try:
            value = value.detach().cpu().numpy()
        except (TypeError, RuntimeError):
            # Of a type that numpy does not have.
            return np.array([str(value.dtype), *map(str, value.shape)])
    return np.asarray(value) if isinstance(value, (np.ndarray, np.generic)) else None


class SavedState:
    """Reads the fields of a saved state, which must fit its seal and its rules.

    >>> SavedState("a loader", {"epoch": -3}).whole("epoch")
    Traceback (most recent call last):
    evenstep.errors.StateFileError: epoch of a saved loader must be a whole number >= 0, got -3
    """

    def __init__(self, what: str, state: object, *names: str) -> None:
        """`what` the state is of, with its article; `names` of fields that it must have."""
        check_seal(what, state)
        assert isinstance(state, Mapping)
        self._saved = "a saved " + what.removeprefix("a ").removeprefix("an ")
        self._state = state
        if any(name not in state for name in names):
            raise StateFileError(
                f"the state of {what} must have {', '.join(names[:-1])} and {names[-1]}, got "
                f"{', '.join(map(str, state)) or 'nothing'}"
            )

    def __contains__(self, name: str) -> bool:
        return name in self._state

    def __getitem__(self, name: str) -> Any:
        return self._state[name]

    def whole(self, name: str, least: int = 0, most: int = 2**63 - 1) -> int:
        """Return a whole number within these limits."""
        value = self._state[name]
        if not isinstance(value, Integral) or isinstance(value, bool) or int(value) < least:
            raise self.wrong(name, f"a whole number >= {least}")
        if int(value) > most:
            raise self.wrong(name, f"at most {most}")
        return int(value)

    def wholes(self, name: str, count: int, least: int = 0) -> Ints:
        """Return an array of this many whole numbers."""
        array = as_array(self._state[name])
        if array is not None and not array.size:
            # An empty list has no kind.
            array = array.astype(np.int64)
        if array is None or array.dtype.kind != "i" or array.shape != (count,):
            raise self.wrong(name, f"{count} whole numbers")
        if np.any(array < least):
            raise self.wrong(name, f"whole numbers >= {least}")
        return array.astype(np.int64)

    def flag(self, name: str) -> bool:
        """Return True or False."""
        if not isinstance(self._state[name], bool):
            raise self.wrong(name, "True or False")
        return bool(self._state[name])

    def text(self, name: str) -> str:
        """Return a string."""
        if not isinstance(self._state[name], str):
            raise self.wrong(name, "a string")
        return str(self._state[name])

    def items(self, name: str) -> list[Any]:
        """Return a list."""
        if not isinstance(self._state[name], (list, tuple)):
            raise self.wrong(name, "a list")
        return list(self._state[name])

    def wrong(self, name: str, rule: str) -> StateFileError:
        """Return the error for a field that breaks its rule."""
        try:
            got = reprlib.repr(self._state[name])
        except ValueError:
            # A number of thousands of digits.
            got = "a number that is too long"
        return StateFileError(f"{name} of {self._saved} must be {rule}, got {got}")


def as_array(values: object) -> NDArray[Any] | None:
    """Return saved values as an array of their own kind; None if they have none in common."""
    if isinstance(values, (list, tuple)):
        try:
            return np.asarray(values)
        except (ValueError, OverflowError):
            return None
    return np.asarray(values) if isinstance(values, (int, float, str)) else _as_array(values)


def remap_rows(state: State, fresh: State, keep: Ints) -> State:
    """Return `state` for other members.

    `keep` holds for each new position the old one, or -1 for a newcomer, which gets its row of
    `fresh`, the state of that many workers before any observation. A field that is neither an array
    nor a dataclass of arrays belongs to no worker and stays.

    >>> remap_rows(np.array([10, 11, 12]), np.zeros(3, dtype=int), np.array([2, -1, 0]))
    array([12,  0, 10])
    """
    if isinstance(state, np.ndarray) and isinstance(fresh, np.ndarray):
        rows = fresh.copy()
        stays = keep >= 0
        rows[stays] = state[keep[stays]]
        return rows
    if not is_dataclass(state):
        return state
    return replace(
        state,
        **{  # type: ignore[type-var]
            f.name: remap_rows(getattr(state, f.name), getattr(fresh, f.name), keep)
            for f in fields(state)
        },
    )


def to_arrays(state: object) -> Arrays:
    """Return every field as an array, for a checkpoint or a file, and the seal.

    Numbers become 0-d arrays; the fields of a state within the state are named `outer.inner`.
    """
    arrays = _unsealed(state)
    return arrays and {**arrays, SEAL: np.array(sealed(arrays)[SEAL])}


def _unsealed(state: object) -> Arrays:
    arrays: Arrays = {}
    for f in _fields(state):
        value = getattr(state, f.name)
        if is_dataclass(value):
            arrays |= {f"{f.name}.{name}": array for name, array in _unsealed(value).items()}
        else:
            arrays[f.name] = np.array(value)
    return arrays


def from_arrays(fresh: State, arrays: Mapping[str, NDArray[Any]]) -> State:
    """Return a state like `fresh` with the values of `arrays`, or raise StateFileError.

    The arrays may come from a damaged or foreign file: names, shapes and kinds must match, and a
    number may be missing (NaN) only where `fresh` has missing numbers too. They must fit their
    seal, if they have one.
    """
    state = _filled(fresh, arrays)
    if SEAL in arrays:
        check_seal("rows", {name: arrays[name] for name in (*_unsealed(fresh), SEAL)})
    return state


def _filled(fresh: State, arrays: Mapping[str, NDArray[Any]]) -> State:
    values: dict[str, Any] = {}
    for f in _fields(fresh):
        model = getattr(fresh, f.name)
        if is_dataclass(model):
            values[f.name] = _filled(model, inner_arrays(arrays, f.name))
        else:
            values[f.name] = _checked(f.name, np.asarray(model), arrays)
    return replace(fresh, **values) if values else fresh  # type: ignore[type-var]


def inner_arrays(arrays: Mapping[str, NDArray[Any]], name: str) -> Arrays:
    """Return the arrays of the inner state with this name.

    >>> inner_arrays({"memory.size": np.ones(1), "past": np.ones(2)}, "memory")
    {'size': array([1.])}
    """
    prefix = name + "."
    return {key[len(prefix) :]: array for key, array in arrays.items() if key.startswith(prefix)}


def _fields(state: object) -> tuple[Field[Any], ...]:
    """Return the fields of a state; None has no fields."""
    return () if state is None else fields(state)  # type: ignore[arg-type]


def _checked(name: str, model: NDArray[Any], arrays: Mapping[str, NDArray[Any]]) -> Any:
    if name not in arrays:
        raise StateFileError(f"saved state must hold {name!r}, got {sorted(arrays)}")
    try:
        array = np.asarray(arrays[name])
    except ValueError as error:
        raise StateFileError(f"saved {name!r} must be an array, {error}") from error
    if array.shape != model.shape or array.dtype.kind != model.dtype.kind:
        raise StateFileError(
            f"saved {name!r} must be {model.dtype} of shape {model.shape}, "
            f"got {array.dtype} of shape {array.shape}"
        )
    if array.dtype.kind == "f":
        missing_ok = bool(np.isnan(model).any())
        if np.isinf(array).any() or (np.isnan(array).any() and not missing_ok):
            raise StateFileError(f"saved {name!r} must hold finite numbers")
    return array.astype(model.dtype) if model.ndim else array.item()
