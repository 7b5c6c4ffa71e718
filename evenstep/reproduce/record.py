"""Records: the result of an experiment with where it came from, one JSON file each."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from evenstep import __version__
from evenstep.core.archive import replace_file
from evenstep.errors import FileError
from evenstep.reproduce.data import QUICK_NAMES
from evenstep.reproduce.experiment import Experiment, Settings
from evenstep.reproduce.result import Result, check_kind


@dataclass(frozen=True)
class Record:
    """A result, and what somebody needs to make it again."""

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

    def __post_init__(self) -> None:
        check_kind(self.name, self.kind)

    def as_json(self) -> dict[str, Any]:
        return {**vars(self), "result": self.result.as_json()}


def make_record(
    experiment: Experiment, settings: Settings, seconds: float, result: Result
) -> Record:
    """Return the record of a result that was made just now."""
    return Record(
        name=experiment.name,
        title=experiment.title,
        of_paper=experiment.of_paper,
        kind=experiment.kind,
        command=command_of(experiment.name, settings),
        date=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        seconds=round(seconds, 1),
        made_with=made_with(settings, experiment.data),
        machine=f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}",
        result=result,
    )


def made_with(settings: Settings, names: Iterable[str]) -> dict[str, Any]:
    """Return what a result depends on besides its seeds: the data of these names, among others."""
    taken = [name for name in names if not settings.quick or name in QUICK_NAMES]
    data = {name: what for name, what in settings.data.contents.items() if name in taken}
    return {"quick": settings.quick, "data": data, "version": __version__}


def command_of(name: str, settings: Settings) -> str:
    """Return the command that makes an experiment.

    >>> command_of("micro", Settings(quick=True))
    'evenstep reproduce micro --quick'
    """
    data = " --data DIR" if settings.data.folder is not None else ""
    return f"evenstep reproduce {name}{' --quick' if settings.quick else ''}{data}"


def record_file(folder: Path, name: str) -> Path:
    """Return where the record of an experiment is."""
    return folder / f"{name}.json"


def save_record(folder: Path, record: Record) -> None:
    """Write a record to its file in the folder; whole, or not at all."""
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
        rule = "must be a record of evenstep reproduce; remove it to have it made anew"
        raise FileError(f"{file}: {rule}: {error}") from error
