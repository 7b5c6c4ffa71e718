"""The types of `parameters.thrift`, read when they are first needed."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from evenstep.manager.connection import Callee
from evenstep.manager.wire import load_types

MAX_FRAME = 1_000_000
"""Bytes of the largest frame that the parameter server reads."""


@cache
def types() -> Any:
    """Return the module that thriftpy2 makes of the file."""
    return load_types(Path(__file__).with_name("parameters.thrift"))


PARAMETER_SERVER = Callee("parameter server", "ParameterServer", 1, types)
