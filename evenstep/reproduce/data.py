"""Where the full data are, if they are here: by the names under which people have them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from evenstep.errors import InvalidSetting


@dataclass(frozen=True)
class Data:
    """A folder with data sets, in folders of their own or not; None: only what comes along."""

    folder: Path | None = None

    def __post_init__(self) -> None:
        if self.folder is not None and not self.folder.is_dir():
            raise InvalidSetting(f"data must be a folder, got {str(self.folder)!r}")

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


NO_DATA = Data()
