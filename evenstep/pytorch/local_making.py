"""Making the loader of local partitions: all workers together, so that nobody fails alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from evenstep.errors import InvalidSetting
from evenstep.partitions import MigrationRule
from evenstep.pytorch.background_processes import Serving
from evenstep.pytorch.loader_options import LocalLoaderOptions
from evenstep.pytorch.local_carrier import AgentCarrier, start_agents
from evenstep.pytorch.local_loader import LocalLoader
from evenstep.pytorch.local_migration import LocalMigration
from evenstep.pytorch.local_source import Everybody, LocalSource, Source, read_and_tell
from evenstep.training.loop import Loop
from evenstep.training.meeting import Meeting, require_agreement, tell

Made = TypeVar("Made")


def make_local_loader(
    loop: Loop,
    ended: Callable[[], None],
    source: Source,
    options: LocalLoaderOptions,
) -> LocalLoader:
    """Return the loader of a worker's own samples; all workers must call it, with like settings."""
    loading: dict[str, Any] = dict(options)
    rule: MigrationRule | None = loading.pop("rule", None)
    serving: Serving | None = loading.pop("serving", None)
    local = LocalSource(source)
    meeting = loop.meeting
    _require_agreement(local, rule, loading, meeting)
    _together(meeting, lambda: _check_serving(serving, rule))
    if rule is None:
        snapshot, everybody = _read(local, meeting)
        return _together(
            meeting, lambda: LocalLoader(loop, ended, local, snapshot, everybody, **loading)
        )
    if local.folder is None:
        raise InvalidSetting(
            "samples can migrate between partitions on disk (evenstep.partitions.Partition), "
            f"got a rule for {type(source).__name__}"
        )
    serving = serving or Serving()
    agent, addresses = start_agents(local.folder, serving, meeting)
    try:
        snapshot, everybody = _read(local, meeting)
        carrier = None
        if loop.worker == 0:
            carrier = AgentCarrier(addresses, serving, loading.get("seed", 0))
        migration = LocalMigration(rule, everybody.sizes, everybody.caps, carrier, agent)
        loader = _together(
            meeting,
            lambda: LocalLoader(loop, ended, local, snapshot, everybody, migration, **loading),
        )
        assert loop.column is not None, "DDP has room for it"
        loop.column.take(migration)
    except BaseException:
        agent.close()
        raise
    return loader


def _require_agreement(
    local: LocalSource,
    rule: MigrationRule | None,
    loading: Mapping[str, Any],
    meeting: Meeting,
) -> None:
    """Raise on all workers what is wrong on one, before anybody does something else."""
    require_agreement(
        {
            "rule": rule,
            "partition on disk": local.folder is not None,
            "importance": loading.get("importance", False),
            "shuffle": loading.get("shuffle", True),
            "seed": loading.get("seed", 0),
        },
        meeting,
    )
    if not (rule is None or isinstance(rule, MigrationRule)):
        raise InvalidSetting(f"rule must be a MigrationRule or None, got {rule!r}")


def _check_serving(serving: Serving | None, rule: MigrationRule | None) -> None:
    if not (serving is None or isinstance(serving, Serving)):
        raise InvalidSetting(f"serving must be a Serving or None, got {serving!r}")
    if serving is not None and rule is None:
        raise InvalidSetting("serving goes with a rule, without which no samples migrate")


def _together(meeting: Meeting, make: Callable[[], Made]) -> Made:
    """Return what was made, if all workers could make theirs; raise on all what is wrong on one."""
    made: list[Made] = []
    problem, cause = "", None
    try:
        made.append(make())
    except Exception as error:
        problem, cause = str(error) or repr(error), error
    for worker, theirs in enumerate(tell(meeting, problem)):
        if theirs:
            raise InvalidSetting(f"worker {worker}: {theirs}") from cause
    return made[0]


def _read(local: LocalSource, meeting: Meeting) -> tuple[Any, Everybody]:
    snapshot, everybody = read_and_tell(local, meeting)
    if everybody.problem:
        raise InvalidSetting(f"every worker must be able to read its samples; {everybody.problem}")
    if local.folder is not None:
        digest, count = Counter(everybody.digests.tolist()).most_common(1)[0]
        if count > 1:
            first = everybody.digests.tolist().index(digest)
            raise InvalidSetting(
                f"every worker must have a partition of its own, got that of worker {first} "
                f"{count} times"
            )
    return snapshot, everybody
