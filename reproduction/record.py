"""Records: the result of an experiment with its provenance, one JSON file each."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from evenstep import __version__
from evenstep.core.archive import replace_file
from evenstep.errors import FileError
from reproduction.checkout import commit_of
from reproduction.experiment import Experiment, Settings
from reproduction.result import Result, check_kind


@dataclass(frozen=True)
class Record:
    """A result, and everything needed to make it again."""

    name: str
    title: str
    of_paper: str
    kind: str
    command: str
    date: str
    """When it was made, UTC."""
    seconds: float
    """How long that took, on this machine's clock."""
    made_with: Mapping[str, Any]
    """Settings and versions; a record made with others is not taken for this one."""
    machine: str
    result: Result
    kept_parts: int = 0
    """How many parts had been finished before, so that their time is not among the seconds."""
    load: Sequence[float] = ()
    """The machine's load average at the start and at the end, where it has one."""
    commit: str = ""
    """The commit, where it ran from a git checkout."""

    def __post_init__(self) -> None:
        check_kind(self.name, self.kind)

    def as_json(self) -> dict[str, Any]:
        return {**vars(self), "result": self.result.as_json()}


@dataclass(frozen=True)
class Start:
    """When an experiment began, and on what."""

    at: float
    """On the monotonic clock."""
    load: list[float]
    commit: str

    @classmethod
    def now(cls) -> Start:
        return cls(time.monotonic(), load_average(), commit_of())


def load_average() -> list[float]:
    """Return the load average of the last minute, as a list of one; none where it is not known."""
    try:
        return [round(os.getloadavg()[0], 2)]
    except (AttributeError, OSError):
        return []


def make_record(
    experiment: Experiment, settings: Settings, start: Start, kept_parts: int, result: Result
) -> Record:
    """Return the record of a result that was made just now."""
    return Record(
        name=experiment.name,
        title=experiment.title,
        of_paper=experiment.of_paper,
        kind=experiment.kind,
        command=command_of(experiment.name, settings),
        date=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        seconds=round(time.monotonic() - start.at, 1),
        made_with=made_with(settings, experiment.data),
        machine=f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}",
        result=result,
        kept_parts=kept_parts,
        load=start.load + load_average(),
        commit=start.commit,
    )


def made_with(settings: Settings, names: Iterable[str]) -> dict[str, Any]:
    """Return all that a result depends on but its seeds: the data of these names, among others."""
    taken = settings.taken(names)
    data = {name: what for name, what in settings.data.contents.items() if name in taken}
    return {"quick": settings.quick, "data": data, "version": __version__}


def command_of(name: str, settings: Settings) -> str:
    """Return the command that makes an experiment.

    >>> command_of("micro", Settings(quick=True))
    'python -m reproduction micro --quick'
    """
    data = " --data DIR" if settings.data.folder is not None else ""
    return f"python -m reproduction {name}{' --quick' if settings.quick else ''}{data}"


def record_file(folder: Path, name: str) -> Path:
    """Return the path of an experiment's record."""
    return folder / f"{name}.json"


def save_record(folder: Path, record: Record) -> None:
    """Write a record to its file in the folder, atomically."""
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(record.as_json(), indent=1, allow_nan=False)
    replace_file(record_file(folder, record.name), text.encode())


def load_record(folder: Path, name: str) -> Record | None:
    """Return the record of an experiment, if the folder has one."""
    file = record_file(folder, name)
    if not file.is_file():
        return None
    try:
        plain = json.loads(file.read_text(encoding="utf-8"))
        return Record(**{**plain, "result": Result.of_json(plain["result"])})
    except (ValueError, TypeError, KeyError) as error:
        rule = "must be a record of an experiment; remove it to have it made again"
        raise FileError(f"{file}: {rule}: {error}") from error
