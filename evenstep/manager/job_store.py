"""The saved jobs of a manager: one file per job, written atomically, in the folder of --state."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

import numpy as np

from evenstep.core import SEAL, Arrays, SavedState, inner_arrays
from evenstep.core.archive import lock_folder, parse_archive, write_archive
from evenstep.errors import EvenstepError, InvalidSetting, StateFileError
from evenstep.manager.job_settings import JobSettings, check_name, safe_name

FORMAT = 1
LARGEST_NUMBER = 2**40
"""Plan numbers up to here may come from an earlier manager, whose state is lost: a million restarts
skip a million numbers each."""
_SUFFIX = ".job.npz"


@dataclass(frozen=True, eq=False)
class LearnedState:
    """The learned state of a run, as planners save it."""

    workers: tuple[str, ...]
    state: Arrays


@dataclass(frozen=True, eq=False)
class Saved:
    """The state of a job to be saved."""

    job: str
    settings: JobSettings
    iteration: int
    """k of the open boundary."""
    leases: dict[str, float]
    """The leases of the workers, in seconds."""
    running: LearnedState | None
    """The members and their learned state; None if the job does not run."""
    learned: LearnedState | None
    """The state that the next run begins with, if this one has lost workers or has ended."""
    least_number: int = 0
    """New plans have at least this number."""

    @property
    def known(self) -> list[LearnedState]:
        return [learned for learned in (self.running, self.learned) if learned is not None]


def lock(folder: Path) -> IO[str]:
    """Lock the folder against other managers, for as long as the result is kept open."""
    held = lock_folder(folder)
    if held is None:
        raise InvalidSetting(f"another manager must not use the folder, got {folder}")
    return held


def save(folder: Path, saved: Saved) -> None:
    """Write the file of a job; a crash leaves the old one or the new one."""
    settings = {**asdict(saved.settings), "job": saved.job, "leases": saved.leases}
    if not saved.settings.elastic:
        # So that an older manager, which has no such setting, can read the file.
        del settings["elastic"]
    arrays: Arrays = {
        "format": np.array(FORMAT),
        "settings": np.array(json.dumps(settings)),
        "iteration": np.array(saved.iteration),
        "least_number": np.array(saved.least_number),
        **_arrays("running", saved.running),
        **_arrays("learned", saved.learned),
    }
    write_archive(path_of(folder, saved.job), arrays)


def clear_scratch(folder: Path) -> None:
    """Remove the half-written files of a manager that was killed."""
    for path in folder.glob(f".*{_SUFFIX}.*"):
        path.unlink(missing_ok=True)


def load_all(folder: Path, complain: Callable[[str], None]) -> list[Saved]:
    """Read the files of all jobs, oldest first; a damaged one is reported and set aside."""
    paths = sorted(folder.glob(f"*{_SUFFIX}"), key=lambda path: (path.stat().st_mtime, path))
    found = [_load(path, complain) for path in paths]
    return [saved for saved in found if saved is not None]


def set_aside(path: Path) -> Path:
    """Rename a file that cannot be used, so that it is neither read again nor lost."""
    numbers = range(1, 1_000_000)
    names = (path.with_name(f"{path.name}.damaged-{number}") for number in numbers)
    aside = next(name for name in names if not name.exists())
    return path.rename(aside)


def path_of(folder: Path, job: str) -> Path:
    """Return the path of a job's file; two jobs never share one."""
    return folder / f"{safe_name(job)}{_SUFFIX}"


def _load(path: Path, complain: Callable[[str], None]) -> Saved | None:
    try:
        saved = _parse(path.read_bytes())
        if path_of(path.parent, saved.job) != path:
            raise StateFileError(f"a file must be named after its job, which is {saved.job}")
        return saved
    except (EvenstepError, OSError) as error:
        complain(f"{path} cannot be used and is now {set_aside(path).name}: {error}")
        return None


def _parse(content: bytes) -> Saved:
    arrays = parse_archive(content, "a saved job", FORMAT, ("settings", "iteration"))
    try:
        settings = json.loads(str(arrays["settings"]))
        job, leases = check_name("job", settings.pop("job")), settings.pop("leases")
        return Saved(
            job,
            JobSettings(**settings),
            SavedState("a job", {"iteration": arrays["iteration"].tolist()}).whole("iteration"),
            {str(worker): float(lease) for worker, lease in leases.items()},
            _learned("running", arrays),
            _learned("learned", arrays),
            _healed(int(arrays.get("least_number", 0))),
        )
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise StateFileError(f"a saved job must be whole, {error!r}") from error


def _arrays(name: str, learned: LearnedState | None) -> Arrays:
    if learned is None:
        return {}
    # Without the seals of its parts: the file has a checksum.
    parts = {key: array for key, array in learned.state.items() if not key.endswith(f".{SEAL}")}
    state = {f"{name}.state.{key}": array for key, array in parts.items()}
    return {f"{name}.workers": np.array(learned.workers, dtype=np.str_), **state}


def _learned(name: str, arrays: Arrays) -> LearnedState | None:
    own = inner_arrays(arrays, name)
    if "workers" not in own:
        return None
    workers = tuple(check_name("worker", str(worker)) for worker in own["workers"])
    state = inner_arrays(own, "state")
    state["own.number"] = np.array(_healed(int(state["own.number"])))
    return LearnedState(workers, state)


def _healed(number: int) -> int:
    """Return a saved plan number; one that no manager can have given becomes the largest possible.

    Such a number stood in a report that an earlier manager believed.
    """
    return number if 0 <= number <= 2 * LARGEST_NUMBER else LARGEST_NUMBER
