"""The factory of callbacks that Lightning finds by itself, through its entry point.

Lightning calls it for every Trainer, with `lightning.pytorch.callbacks_factory`. It does nothing
unless the environment asks for it: `EVENSTEP=1 torchrun train.py`.
"""

from __future__ import annotations

import os
from typing import Any

from evenstep.errors import InvalidSetting

VARIABLE = "EVENSTEP"


def make_callbacks() -> list[Any]:
    """Return a callback with the default settings if `EVENSTEP=1` is set, otherwise none."""
    value = os.environ.get(VARIABLE, "0")
    if value not in ("", "0", "1"):
        raise InvalidSetting(f"{VARIABLE} must be 0 or 1 in the environment, got {value!r}")
    if value != "1":
        return []
    from evenstep.lightning.callback import EvenstepCallback

    return [EvenstepCallback()]
