"""Runs experiments, each once, and keeps their results."""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from evenstep.cli.main import missing_package
from evenstep.errors import EvenstepError, InvalidSetting
from reproduction import EXTRAS
from reproduction.drawing import save_pictures
from reproduction.experiment import Experiment, Progress, Settings, Skipped
from reproduction.experiments import EXPERIMENTS
from reproduction.parts import Parts
from reproduction.record import (
    Record,
    Start,
    load_record,
    made_with,
    make_record,
    record_file,
    save_record,
)
from reproduction.result import Result

ALL = "all"


def chosen(names: Sequence[str]) -> list[Experiment]:
    """Return the experiments of these names, in the order of the registry; all without a name.

    >>> [experiment.name for experiment in chosen(["micro", "gpu-curve"])]
    ['gpu-curve', 'micro']
    """
    for name in names:
        if name not in (ALL, *EXPERIMENTS):
            known = ", ".join(EXPERIMENTS)
            raise InvalidSetting(f"experiment must be {ALL} or one of {known}, got {name!r}")
    if not names or ALL in names:
        return list(EXPERIMENTS.values())
    return [experiment for name, experiment in EXPERIMENTS.items() if name in names]


def finished(experiment: Experiment, settings: Settings, out: Path) -> Record | None:
    """Return the record of an experiment that was made already, with these settings."""
    record = load_record(out, experiment.name)
    if record is None or record.result.is_empty:
        return None
    return record if record.made_with == made_with(settings, experiment.data) else None


def run(experiment: Experiment, settings: Settings, out: Path, progress: Progress) -> Record:
    """Make an experiment, or take its finished record; then record and plots are in the folder."""
    record = finished(experiment, settings, out) or _make(experiment, settings, out, progress)
    draw_missing(record, out)
    return record


def draw_missing(record: Record, out: Path) -> None:
    """Draw the plots of a record that are missing in the folder, if matplotlib is installed."""
    with contextlib.suppress(ModuleNotFoundError):
        save_pictures(out, record.name, record.result.plots)


def _make(experiment: Experiment, settings: Settings, out: Path, progress: Progress) -> Record:
    folder = _parts(experiment, settings, out)
    parts, trainings = Parts(folder), Parts(_trainings(experiment, settings, out))
    start = Start.now()
    result = _result(experiment, replace(settings, parts=parts, shared=trainings), progress)
    num_taken = len(parts.taken) + len(trainings.taken)
    record = make_record(experiment, settings, start, num_taken, result)
    for picture in out.glob(f"{record.name}-[0-9]*.svg"):
        # Before the new record: pictures that are there afterwards must show its figures.
        picture.unlink()
    save_record(out, record)
    if not result.failed:
        # Its parts stay, and the next attempt continues from them.
        _remove(folder, out)
    return record


def forget(experiments: Sequence[Experiment], settings: Settings, out: Path) -> None:
    """Remove what these experiments have kept with these settings: records, parts, trainings.

    All at once, before the first of them is made again: an interrupted run can then continue.
    """
    for experiment in experiments:
        if finished(experiment, settings, out) is not None:
            record_file(out, experiment.name).unlink()
        _remove(_parts(experiment, settings, out), out)
        if experiment.shares:
            _remove(_trainings(experiment, settings, out), out)


def _parts(experiment: Experiment, settings: Settings, out: Path) -> Path:
    return out / "parts" / experiment.name / _digest(experiment, settings)


def _trainings(experiment: Experiment, settings: Settings, out: Path) -> Path:
    return out / "trainings" / _digest(experiment, settings)


def _remove(folder: Path, out: Path) -> None:
    """Remove a folder, and those around it up to `out` that are empty then."""
    shutil.rmtree(folder, ignore_errors=True)
    with contextlib.suppress(OSError):
        while (folder := folder.parent) != out:
            folder.rmdir()


def _digest(experiment: Experiment, settings: Settings) -> str:
    """Return a short name for what parts depend on, so that others' are not taken for them."""
    text = json.dumps(made_with(settings, experiment.data), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _result(experiment: Experiment, settings: Settings, progress: Progress) -> Result:
    try:
        return experiment.run(settings, progress)
    except Skipped as reason:
        return Result(skipped=str(reason))
    except ModuleNotFoundError as missing:
        return Result(failed=missing_package(missing, EXTRAS))
    except EvenstepError as error:
        # Other experiments may not use the data given for this one.
        return Result(failed=str(error))


def kept_records(out: Path) -> Iterator[Record]:
    """Yield all records of a folder, in the order of the registry."""
    for name in EXPERIMENTS:
        if (record := load_record(out, name)) is not None:
            yield record
