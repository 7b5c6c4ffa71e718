"""Finished parts of an experiment, kept so that an interrupted run can continue."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from evenstep.core.archive import replace_file
from reproduction.result import as_plain


@dataclass(frozen=True)
class Parts:
    """A folder with a file per part; None: nothing is kept."""

    folder: Path | None = None
    made: set[str] = field(default_factory=set, compare=False)
    """Keys of the parts that were made since."""
    taken: set[str] = field(default_factory=set, compare=False)
    """Keys of those that had been made before."""

    def get(self, key: str, make: Callable[[], Any]) -> Any:
        """Return the part of this key as JSON holds it: the one that is kept, or a new one."""
        if self.folder is None:
            return as_plain(make())
        file = self.folder / f"{quote(key, safe=' ,=')}.json"
        if file.is_file():
            self.taken.update({key} - self.made)
            return json.loads(file.read_text(encoding="utf-8"))
        made = as_plain(make())
        self.made.add(key)
        file.parent.mkdir(parents=True, exist_ok=True)
        replace_file(file, json.dumps(made, allow_nan=False).encode())
        return made


NO_PARTS = Parts()
