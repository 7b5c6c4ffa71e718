"""Loads a cluster file: reads the top level, and makes the cluster from all parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from evenstep.core import LARGEST_TOTAL, Ints, Limits, check_feasible
from evenstep.errors import ClusterFileError, InvalidSetting
from evenstep.policies import default_policy, make_policy
from evenstep.simulator.clusters.cluster import Cluster
from evenstep.simulator.clusters.curves import Curves
from evenstep.simulator.clusters.file.mistakes import Mistakes, show, suggest
from evenstep.simulator.clusters.file.section import Section, check_text
from evenstep.simulator.clusters.file.toml_places import parse_toml
from evenstep.simulator.clusters.file.worker_groups import (
    WORKER_KEYS,
    WorkerGroup,
    read_group,
    read_noise,
)
from evenstep.simulator.clusters.noise import QUIET, Noise
from evenstep.simulator.clusters.scheduled import Change, Scheduled
from evenstep.simulator.clusters.traces import UNDISTURBED, Traces

_KEYS = (
    "name",
    "total",
    "samples_per_worker",
    "iterations",
    "score_from",
    "policy",
    "minimum",
    "granularity",
    "noise",
    "workers",
    "changes",
)


def load_cluster(
    path: str | Path, seed: int = 0, iterations: int | None = None, noisy: bool = True
) -> Cluster:
    """Load a cluster from a TOML file; `iterations` overrides the file's value.

    Raises ClusterFileError with all mistakes in the file, one per line, each with its location:
    ``cluster.toml:14: workers[1].speed must be finite and > 0, got -3.0``.
    """
    if iterations is not None and iterations < 1:
        raise InvalidSetting(f"the number of iterations must be >= 1, got {iterations}")
    path = Path(path)
    text = _read_text(path)
    mistakes = Mistakes(str(path), text)
    top = Section(parse_toml(str(path), text), (), _KEYS, mistakes)
    groups = _read_groups(top, path.parent)
    settings = _read_settings(top, path.stem, sum(group.count for group in groups))
    changes = read_changes(top, groups)
    if not mistakes:
        _check_limits(top, settings, groups)
    mistakes.raise_any()
    if iterations is not None:
        settings.iterations = iterations
    return _assemble(settings, groups, changes, seed, noisy)


@dataclass
class _Settings:
    """The settings at the top of the file; an invalid one keeps its default."""

    name: str
    total: int = 1
    iterations: int = 500
    score_from: int = 0
    policy: str = default_policy()
    minimum: int = 1
    granularity: int = 1


def _read_text(path: Path) -> str:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ClusterFileError(f"{path}: cannot be read: {error.strerror}") from error
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise ClusterFileError(f"{path}:{line}: must be UTF-8 text: {error.reason}") from error


def _read_settings(top: Section, name: str, num_workers: int) -> _Settings:
    settings = _Settings(name)
    with top.noting():
        settings.name = top.text("name", name)
    with top.noting():
        settings.total = _read_total(top, num_workers)
    with top.noting():
        settings.iterations = top.whole("iterations", settings.iterations, least=1)
    with top.noting():
        settings.score_from = top.whole("score_from", 0, most=settings.iterations - 1)
    with top.noting("policy"):
        settings.policy = top.text("policy", settings.policy)
        make_policy(settings.policy)
    with top.noting():
        settings.minimum = top.whole("minimum", settings.minimum, most=LARGEST_TOTAL)
    with top.noting():
        settings.granularity = top.whole("granularity", 1, least=1, most=LARGEST_TOTAL)
    return settings


def _read_total(top: Section, num_workers: int) -> int:
    if ("total" in top) == ("samples_per_worker" in top):
        got = "both" if "total" in top else "neither"
        raise InvalidSetting(f"exactly one of total, samples_per_worker must be given, got {got}")
    if "total" in top:
        return top.whole("total", least=1, most=LARGEST_TOTAL)
    most = LARGEST_TOTAL // max(num_workers, 1)
    return num_workers * top.whole("samples_per_worker", least=1, most=most)


def _read_groups(top: Section, folder: Path) -> list[WorkerGroup]:
    noise = QUIET
    with top.noting():
        noise = read_noise(top, QUIET)
    groups: list[WorkerGroup] = []
    with top.noting():
        sections = top.sections("workers", WORKER_KEYS)
        if not sections:
            raise InvalidSetting("workers must be given in at least one [[workers]] table")
        groups = [read_group(section, folder, noise) for section in sections]
        _check_names(sections, groups)
    return groups


def _check_names(sections: Sequence[Section], groups: Sequence[WorkerGroup]) -> None:
    """Note names shared by two workers or groups: a change could not distinguish them."""
    taken: set[str] = set()
    for section, group in zip(sections, groups, strict=True):
        names = [group.name, *group.names] if group.name else []
        twice = next((name for name in names if name in taken), None)
        if twice is not None:
            section.note(f"name must differ from the others, but {twice!r} is already taken")
        taken.update(names)


def _check_limits(top: Section, settings: _Settings, groups: Sequence[WorkerGroup]) -> None:
    """Note the reason if no batch sizes within the limits add up to the total."""
    granularity, total = settings.granularity, settings.total
    smallest = -(-settings.minimum // granularity) * granularity
    for i, group in enumerate(groups):
        if group.memory_cap < smallest:
            rule = f"memory_cap must leave room for the smallest batch size {smallest}"
            top.note(f"{rule}, got {group.memory_cap}", "workers", i, "memory_cap")
    if top.mistakes:
        return
    caps = np.array([group.memory_cap for group in groups for _ in range(group.count)])
    with top.noting("total" if "total" in top else "samples_per_worker"):
        check_feasible(total, np.full(len(caps), smallest), np.minimum(caps, total))
        Limits.of(len(caps), smallest, caps, granularity).bounds(total)


def _assemble(
    settings: _Settings,
    groups: Sequence[WorkerGroup],
    changes: Sequence[Change],
    seed: int,
    noisy: bool,
) -> Cluster:
    workers = [group for group in groups for _ in range(group.count)]
    traces = [group.trace for group in workers]
    return Cluster(
        name=settings.name,
        workers=[name for group in groups for name in group.names],
        curves=Curves.of([group.curve for group in workers]),
        cap=np.array([group.memory_cap for group in workers]),
        environment=Scheduled(
            communication=np.array([group.communication for group in workers]),
            noise=Noise.of([group.noise if noisy else QUIET for group in workers], seed),
            changes=changes,
            traces=None if all(t is UNDISTURBED for t in traces) else Traces.of(traces),
        ),
        total=settings.total,
        iterations=settings.iterations,
        score_from=settings.score_from,
        changes_at=min((change.iteration for change in changes), default=None),
        policy=settings.policy,
        minimum=settings.minimum,
        granularity=settings.granularity,
        bandwidth=np.array([group.bandwidth for group in workers]),
    )


_CHANGE_KEYS = ("iteration", "workers", "communication", "slowdown")


def read_changes(top: Section, groups: Sequence[WorkerGroup]) -> list[Change]:
    """Read all changes; a change may name single workers and whole groups."""
    positions = _find_positions(groups)
    changes: list[Change] = []
    with top.noting():
        for section in top.sections("changes", _CHANGE_KEYS):
            with section.noting():
                changes.append(_read_change(section, positions))
    return changes


def _find_positions(groups: Sequence[WorkerGroup]) -> dict[str, Ints]:
    """Return the positions of the workers behind each name of a worker or a group."""
    positions: dict[str, Ints] = {}
    first = 0
    for group in groups:
        workers = np.arange(first, first + group.count)
        positions.update(zip(group.names, workers[:, None], strict=True))
        positions[group.name] = workers
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
