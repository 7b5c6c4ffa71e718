"""Finds the full data sets, if present, by their usual file names."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from evenstep.errors import InvalidSetting

NAMES = ("cifar10", "urls", "profet", "google")
QUICK_NAMES = ("profet",)
"""The data sets that a quick run takes too; otherwise it uses bundled data."""


@dataclass(frozen=True)
class Data:
    """A folder with data sets, in folders of their own or not; None: only bundled data."""

    folder: Path | None = None

    def __post_init__(self) -> None:
        if self.folder is not None and not self.folder.is_dir():
            raise InvalidSetting(f"data must be a folder, got {str(self.folder)!r}")
        if self.folder is not None and not self.found:
            rule = f"data must be a folder with at least one of {', '.join(NAMES)}"
            raise InvalidSetting(f"{rule} (reproduction/README.md), got {str(self.folder)!r}")

    @property
    def found(self) -> dict[str, Path]:
        """The data sets found, and their paths."""
        return {name: path for name in NAMES if (path := getattr(self, name)) is not None}

    @cached_property
    def contents(self) -> dict[str, str]:
        """The data sets found, each by the name of its file and a digest of its content."""
        return {name: f"{p.name} (sha256 {_digest(p)[:12]})" for name, p in self.found.items()}

    @property
    def cifar10(self) -> Path | None:
        """CIFAR-10: its folder of Python batches, or an .npz file."""
        batch = self._find("data_batch_1")
        return batch.parent if batch else self._find("cifar10*.npz") or self._find("cifar*.npz")

    @property
    def urls(self) -> Path | None:
        """The malicious URLs, as an svmlight file."""
        return self._find("url*.svm.gz") or self._find("url*.svm")

    @property
    def profet(self) -> Path | None:
        """PROFET's batch latencies, all repeats."""
        return self._find("profet_batch_latency.csv")

    @property
    def google(self) -> Path | None:
        """The usage of all machines in an hour of the Google trace."""
        return self._find("machine_usage_hour.csv.gz")

    def _find(self, name: str) -> Path | None:
        """Return the first file of this name, in the folder or one below."""
        if self.folder is None:
            return None
        found = [*sorted(self.folder.glob(name)), *sorted(self.folder.glob(f"*/{name}"))]
        return found[0] if found else None


def _digest(path: Path) -> str:
    """Return a digest of a file, or of the batches in a folder."""
    digest = hashlib.sha256()
    for file in sorted(path.glob("*_batch*")) if path.is_dir() else [path]:
        with file.open("rb") as content:
            while piece := content.read(2**20):
                digest.update(piece)
    return digest.hexdigest()


NO_DATA = Data()
