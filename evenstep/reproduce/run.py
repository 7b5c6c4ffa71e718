"""Running experiments: each once, unless that is forgotten, and each kept when it is done."""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from evenstep.errors import InvalidSetting
from evenstep.reproduce.drawing import save_pictures
from evenstep.reproduce.experiment import Experiment, Progress, Settings, Skipped
from evenstep.reproduce.experiments import EXPERIMENTS
from evenstep.reproduce.parts import Parts
from evenstep.reproduce.record import (
    Record,
    load_record,
    made_with,
    make_record,
    record_file,
    save_record,
)
from evenstep.reproduce.result import Result

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
    if record is None or record.result.skipped:
        return None
    return record if record.made_with == made_with(settings, experiment.data) else None


def run(experiment: Experiment, settings: Settings, out: Path, progress: Progress) -> Record:
    """Make an experiment, or take what is finished; the record is in the folder afterwards."""
    if (record := finished(experiment, settings, out)) is not None:
        return record
    parts, trainings = _parts(experiment, settings, out), _trainings(experiment, settings, out)
    kept = replace(settings, parts=Parts(parts), shared=Parts(trainings))
    started = time.monotonic()
    result = _result(experiment, kept, progress)
    record = make_record(experiment, settings, time.monotonic() - started, result)
    save_record(out, record)
    for picture in out.glob(f"{record.name}-[0-9]*.svg"):
        # Of figures that are no more, should these not be drawn.
        picture.unlink()
    with contextlib.suppress(ModuleNotFoundError):
        # Without matplotlib the page says that there is none.
        save_pictures(out, record.name, result.plots)
    _remove(parts, out)
    return record


def forget(experiments: Sequence[Experiment], settings: Settings, out: Path) -> None:
    """Remove what these experiments have kept with these settings: records, parts, trainings.

    All at once, before the first of them is made anew: if that is interrupted, it can go on.
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
        package = (missing.name or "evenstep").partition(".")[0]
        if package == "evenstep":
            raise
        return Result(skipped=f"{package} is not installed")


def kept_records(out: Path) -> Iterator[Record]:
    """Yield all records of a folder, in the order of the registry."""
    for name in EXPERIMENTS:
        if (record := load_record(out, name)) is not None:
            yield record
