"""Collective: exchanges small values (settings, names, means) between all workers."""

from __future__ import annotations

import json
import math
import platform
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from evenstep import __version__
from evenstep.core import Floats
from evenstep.errors import InvalidSetting


class Collective(Protocol):
    """All workers of a training. A call to `everybody` waits until all workers have called it."""

    @property
    def worker(self) -> int:
        """The number of this worker, from 0."""
        ...

    @property
    def num_workers(self) -> int: ...

    def everybody(self, row: Floats) -> Floats:
        """Return the rows of all workers, one per worker; all rows have the same length."""
        ...


class Alone:
    """The collective of a single worker."""

    worker = 0
    num_workers = 1

    def everybody(self, row: Floats) -> Floats:
        return row[np.newaxis]


def gather_values(collective: Collective, value: Any) -> list[Any]:
    """Return the values of all workers: anything that JSON can hold.

    >>> gather_values(Alone(), {"total": 64})
    [{'total': 64}]
    """
    encoded = np.frombuffer(json.dumps(value).encode(), dtype=np.uint8)
    lengths = collective.everybody(np.array([len(encoded)], dtype=np.float64))[:, 0].astype(int)
    row = np.zeros(max(lengths), dtype=np.float64)
    row[: len(encoded)] = encoded
    rows = collective.everybody(row).astype(np.uint8)
    received = zip(rows, lengths, strict=True)
    return [json.loads(bytes(theirs[:length]).decode()) for theirs, length in received]


def mean_over_workers(value: float, weight: float, collective: Collective) -> float:
    """Return the weighted mean of all workers' values; NaN if all weights are 0.

    >>> mean_over_workers(3.0, 8, Alone())
    3.0
    """
    # The mean of a worker without samples may be NaN.
    weighted = np.array([value * weight if weight else 0.0, weight], dtype=np.float64)
    summed = collective.everybody(weighted).sum(axis=0)
    return float(summed[0] / summed[1]) if summed[1] else math.nan


def require_agreement(settings: Mapping[str, Any], collective: Collective) -> None:
    """Raise InvalidSetting, on all workers, where settings or evenstep's version differ."""
    # Another version may exchange other rows, or compute another plan from the same ones.
    mine = {"version of evenstep": __version__}
    mine |= {name: repr(value) for name, value in settings.items()}
    compare(gather_values(collective, mine))


def compare(everybody: list[Mapping[str, Any]]) -> None:
    """Raise InvalidSetting for the first worker whose settings are not those of worker 0.

    >>> compare([{"total": "64"}, {"total": "32"}])
    Traceback (most recent call last):
    evenstep.errors.InvalidSetting: total must be the same on all workers, got 64 on worker 0 and
    32 on worker 1
    """
    first = everybody[0]
    for worker, theirs in enumerate(everybody):
        # A worker of another version may lack a name.
        for name in {**first, **theirs}:
            if theirs.get(name) != first.get(name):
                raise InvalidSetting(
                    f"{name} must be the same on all workers, got {first.get(name)} on worker 0 "
                    f"and {theirs.get(name)} on worker {worker}"
                )


def exchange_names(
    collective: Collective, name: str | None, device: str, device_name: str | None = None
) -> tuple[list[str], str]:
    """Return the names of all workers, and the kind of device that all of them plan for.

    The default name is the host and the device. Where kinds of devices differ, the first that is
    not a CPU is returned, as all workers must choose the same policy.

    >>> exchange_names(Alone(), "left", "cpu")
    (['left'], 'cpu')
    """
    everybody = gather_values(
        collective, [name, f"{platform.node()}/{device_name or device}", device]
    )
    given, found, devices = (list(each) for each in zip(*everybody, strict=True))
    kind = next((device for device in devices if device != "cpu"), "cpu")
    return choose_names(given, found), kind


def choose_names(given: Sequence[str | None], found: Sequence[str]) -> list[str]:
    """Return the names of all workers: the given ones, or the found ones.

    Equal names that were found get a number, in the order of the workers.

    >>> choose_names([None, None, None], ["a/cpu", "b/cpu", "a/cpu"])
    ['a/cpu', 'b/cpu', 'a/cpu#1']
    """
    names = [name for name in given if name is not None]
    if names and len(names) < len(given):
        raise InvalidSetting(
            f"name must be given on all workers or on none, got none on worker {given.index(None)}"
        )
    if names:
        _require_distinct(names)
        return names
    return _numbered(found)


def _numbered(names: Sequence[str]) -> list[str]:
    """Add a number to each name that occurred before."""
    seen: Counter[str] = Counter()
    numbered = []
    for name in names:
        numbered.append(f"{name}#{seen[name]}" if seen[name] else name)
        seen[name] += 1
    return numbered


def _require_distinct(names: list[str]) -> None:
    for worker, name in enumerate(names):
        if name in names[:worker]:
            raise InvalidSetting(
                f"name must be another on every worker, got {name!r} on workers "
                f"{names.index(name)} and {worker}"
            )
