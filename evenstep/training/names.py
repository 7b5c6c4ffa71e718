"""What the workers of a training are called: as they say, or by host and device."""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Sequence

from evenstep.errors import InvalidSetting
from evenstep.training.meeting import Meeting, tell


def introduce(
    meeting: Meeting, name: str | None, device: str, device_name: str | None = None
) -> tuple[list[str], str]:
    """Return the names of all workers, and the kind of device that all of them plan for.

    A worker without a name is called by its host and device. Where kinds of devices differ, it is
    the first which is no CPU: all workers must choose one policy.

    >>> from evenstep.training.meeting import Alone
    >>> introduce(Alone(), "left", "cpu")
    (['left'], 'cpu')
    """
    everybody = tell(meeting, [name, f"{platform.node()}/{device_name or device}", device])
    given, found, devices = (list(each) for each in zip(*everybody, strict=True))
    kind = next((device for device in devices if device != "cpu"), "cpu")
    return choose_names(given, found), kind


def choose_names(given: Sequence[str | None], found: Sequence[str]) -> list[str]:
    """Return the names of all workers: as they were given, or as they were found.

    Several that were found alike are told apart by a number, in the order of the workers.

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
    """Tell equal names apart."""
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
