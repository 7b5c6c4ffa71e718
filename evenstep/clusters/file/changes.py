"""The [[changes]] tables of a cluster file."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from evenstep.clusters.file.mistakes import show, suggest
from evenstep.clusters.file.section import Section, check_text
from evenstep.clusters.file.worker_groups import WorkerGroup
from evenstep.clusters.scheduled import Change
from evenstep.core.arrays import Ints
from evenstep.errors import InvalidSetting

_KEYS = ("iteration", "workers", "communication", "slowdown")


def read_changes(top: Section, groups: Sequence[WorkerGroup]) -> list[Change]:
    """Read all changes; a change may name single workers and whole groups."""
    positions = _find_positions(groups)
    changes: list[Change] = []
    with top.noting():
        for section in top.sections("changes", _KEYS):
            with section.noting():
                changes.append(_read_change(section, positions))
    return changes


def _find_positions(groups: Sequence[WorkerGroup]) -> dict[str, Ints]:
    """Return the positions of the workers that each name, of a group or of a worker, stands for."""
    positions: dict[str, Ints] = {}
    first = 0
    for group in groups:
        everyone = np.arange(first, first + group.count)
        positions.update(zip(group.names, everyone[:, None], strict=True))
        positions[group.name] = everyone
        first += group.count
    return positions


def _read_change(section: Section, positions: dict[str, Ints]) -> Change:
    names = section.get("workers")
    if isinstance(names, str):
        names = [names]
    if not isinstance(names, list) or not names:
        raise InvalidSetting(f"workers must be a name or a list of names, got {show(names)}")
    for name in names:
        if check_text("workers", name) not in positions:
            raise InvalidSetting(
                f"workers must be names of workers, got {name!r}{suggest(name, positions)}"
            )
    return Change(
        section.whole("iteration"),
        np.concatenate([positions[name] for name in names]),
        section.optional_number("communication"),
        section.optional_number("slowdown"),
    )
