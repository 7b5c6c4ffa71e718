"""The types of `manager.thrift`, loaded when they are first needed."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import thriftpy2

VERSION = 1
"""The version of `manager.thrift` that this manager and this client speak."""


@cache
def types() -> Any:
    """Return the module that thriftpy2 generates from `manager.thrift`."""
    return load_types(Path(__file__).with_name("manager.thrift"))


def load_types(file: Path) -> Any:
    """Return the module that thriftpy2 generates from a Thrift file, under a name of its own."""
    return thriftpy2.load(str(file), module_name=f"evenstep_{file.stem}_thrift")
