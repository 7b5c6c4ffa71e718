"""The types of `agent.thrift`, read when they are first needed, and the limits of its messages."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from evenstep.manager import wire
from evenstep.manager.idl import load_types
from evenstep.manager.line import Callee

VERSION = 1
"""The version of `agent.thrift` that this agent and this manager speak."""
MAX_FRAME = 20 * 2**20
"""Bytes of the largest frame that an agent reads from who has said hello."""
MAX_CHUNK = 16 * 2**20
"""Bytes of the rows of the largest chunk."""
MAX_SAMPLES = 100_000
"""Samples of a hand-over, and of an answer that lists them."""


@cache
def types() -> Any:
    """Return the module that thriftpy2 makes of the file."""
    return load_types(Path(__file__).with_name("agent.thrift"))


AGENT = Callee("agent", "PartitionAgent", VERSION, types, wire.parse_message)
