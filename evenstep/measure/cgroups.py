"""Control groups: the CPU quota, memory limit and pressure of this process, v1 and v2."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")
_SELF = Path("/proc/self/cgroup")
_PRESSURE = Path("/proc/pressure/cpu")


@dataclass(frozen=True)
class MemoryLimit:
    """The memory that a group may use, and the file with its current use."""

    limit: int
    """Bytes."""
    usage_file: Path

    def used(self) -> int | None:
        """Return the bytes in use, or None if the file cannot be read."""
        return _number(self.usage_file)


def cpu_quota(root: Path = _ROOT, groups: Path = _SELF) -> float | None:
    """Return the tightest CPU quota of this process, in CPUs, or None without one."""
    quotas = [
        int(quota) / int(period)
        for folder in _folders("cpu", root, groups)
        for quota, period in (_v2_quota(folder), _v1_quota(folder))
        # `max` and -1 stand for no quota.
        if _is_positive(quota) and _is_positive(period)
    ]
    return min(quotas, default=None)


def memory_limit(root: Path = _ROOT, groups: Path = _SELF) -> MemoryLimit | None:
    """Return the tightest memory limit of this process, or None without one."""
    limits = []
    for folder in _folders("memory", root, groups):
        for limit_name, usage_name in (
            ("memory.max", "memory.current"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        ):
            limit = _number(folder / limit_name)
            if limit:
                limits.append(MemoryLimit(limit, folder / usage_name))
    return min(limits, key=lambda limit: limit.limit) if limits else None


def cpu_pressure_file(
    root: Path = _ROOT, groups: Path = _SELF, machine: Path = _PRESSURE
) -> Path | None:
    """Return the file with the CPU pressure of this process's group, or else of the machine."""
    folders = _folders("cpu", root, groups)
    files = (*(folder / "cpu.pressure" for folder in folders), machine)
    return next((file for file in files if stalled_seconds(file) is not None), None)


def stalled_seconds(file: Path) -> float | None:
    """Return how long any process has waited for a CPU; None if the file cannot be read."""
    for line in (_text(file) or "").splitlines():
        kind, *fields = line.split()
        total = next((field[6:] for field in fields if field.startswith("total=")), "")
        if kind == "some" and total.isdecimal():
            return int(total) / 1e6
    return None


def _folders(controller: str, root: Path, groups: Path) -> list[Path]:
    """Return the folders of this process's group and of all its parent groups."""
    folders: list[Path] = []
    for line in (_text(groups) or "").splitlines():
        _, _, named = line.partition(":")
        controllers, _, path = named.partition(":")
        if controllers == "":
            bases = [root, root / "unified"]
        elif controller in controllers.split(","):
            bases = [root / controllers, root / controller]
        else:
            continue
        group = Path(path.lstrip("/"))
        for base in bases:
            folders += [base / group, *(base / parent for parent in group.parents)]
    return [folder for folder in dict.fromkeys(folders) if folder.is_dir()]


def _v2_quota(folder: Path) -> tuple[str, str]:
    quota, _, period = (_text(folder / "cpu.max") or "").partition(" ")
    return quota, period


def _v1_quota(folder: Path) -> tuple[str, str]:
    quota, period = (folder / f"cpu.cfs_{name}_us" for name in ("quota", "period"))
    return _text(quota) or "", _text(period) or ""


def _is_positive(text: str) -> bool:
    return text.isdecimal() and int(text) > 0


def _text(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return None


def _number(path: Path) -> int | None:
    text = _text(path)
    return int(text) if text is not None and text.isdecimal() else None
