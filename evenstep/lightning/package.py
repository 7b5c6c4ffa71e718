"""The package that Lightning is imported from: it is published under two names."""

from __future__ import annotations

import importlib
import sys
from typing import Any

NAMES = {"lightning.pytorch": "lightning.fabric", "pytorch_lightning": "lightning_fabric"}
"""The two names of the package, each with that of Fabric, which it is built on."""


def _choose() -> str:
    """Return the name under which the script has imported Lightning, or one that is installed."""
    loaded = [name for name in NAMES if name in sys.modules]
    if loaded:
        return loaded[0]
    return "lightning.pytorch" if importlib.util.find_spec("lightning") else "pytorch_lightning"


NAME = _choose()
pl: Any = importlib.import_module(NAME)


def from_fabric(module: str) -> Any:
    """Return a module of the Fabric that belongs to this package."""
    return importlib.import_module(f"{NAMES[NAME]}.{module}")
