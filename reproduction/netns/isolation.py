"""Isolation of a run's processes by Linux: a network namespace, and an end with the parent.

Python has the first since 3.12, and the second not at all.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

from evenstep.errors import EvenstepError

NEEDS = "it takes Linux, iproute2 and the right to make network namespaces (usually root)"

_CLONE_NEWNET = 0x40000000
_PR_SET_PDEATHSIG = 1


def leave_network() -> None:
    """Move this process into a new, empty network namespace."""
    _ask("unshare", _CLONE_NEWNET)


def end_with_parent() -> None:
    """Have this process killed when its parent ends, however that ends."""
    _ask("prctl", _PR_SET_PDEATHSIG, signal.SIGKILL)


def _ask(name: str, *arguments: int) -> None:
    if sys.platform != "linux":
        raise EvenstepError(f"{name} must be called on Linux, got {sys.platform}; {NEEDS}")
    function = getattr(ctypes.CDLL(None, use_errno=True), name)
    if function(*map(ctypes.c_ulong, arguments)):
        reason = os.strerror(ctypes.get_errno())
        raise EvenstepError(f"{name} must be allowed to this process, got {reason!r}; {NEEDS}")
