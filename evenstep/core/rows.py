"""Rows: states that are dataclasses of arrays with one row per worker.

Policies and predictors keep their state in such dataclasses, so that the same three functions serve
changes of membership, checkpoints and files for all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import Field, fields, is_dataclass, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from evenstep.core.arrays import Ints
from evenstep.errors import StateFileError

State = TypeVar("State")
Arrays = dict[str, NDArray[Any]]


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
    """Return every field as an array, for a checkpoint or a file.

    Numbers become 0-d arrays; the fields of a state within the state are named `outer.inner`.
    """
    arrays: Arrays = {}
    for f in _fields(state):
        value = getattr(state, f.name)
        if is_dataclass(value):
            arrays |= {f"{f.name}.{name}": array for name, array in to_arrays(value).items()}
        else:
            arrays[f.name] = np.array(value)
    return arrays


def from_arrays(fresh: State, arrays: Mapping[str, NDArray[Any]]) -> State:
    """Return a state like `fresh` with the values of `arrays`, or raise StateFileError.

    The arrays may come from a damaged or foreign file: names, shapes and kinds must match, and a
    number may be missing (NaN) only where `fresh` has missing numbers too.
    """
    values: dict[str, Any] = {}
    for f in _fields(fresh):
        model = getattr(fresh, f.name)
        if is_dataclass(model):
            values[f.name] = from_arrays(model, inner_arrays(arrays, f.name))
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
    array = np.asarray(arrays[name])
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
