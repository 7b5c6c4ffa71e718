"""Stragglers: actions on the advice that the job would be faster without a worker.

`bench` gives it no samples, and tries it again now and then. `restart` saves a checkpoint and lets
torchrun continue without it: its agent ends, and the other workers fail on purpose, so that their
agents repeat the rendezvous without it.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping

import torch.distributed as dist

from evenstep.errors import InvalidSetting
from evenstep.pytorch.collective import ProcessGroupCollective

ACTIONS = ("advise", "bench", "restart")
_FAREWELL = 60.0
"""Seconds within which an agent must end its worker."""

Checkpoint = Callable[[], None]


def check_straggler(
    action: str, checkpoint: Checkpoint | None, environment: Mapping[str, str] = os.environ
) -> None:
    """Raise InvalidSetting if the action is unknown or not possible here."""
    if action not in ACTIONS:
        raise InvalidSetting(f"straggler must be one of {', '.join(ACTIONS)}, got {action!r}")
    if (action == "restart") != (checkpoint is not None):
        raise InvalidSetting(
            f"checkpoint goes with straggler 'restart', got {checkpoint!r} with {action!r}"
        )
    if action != "restart":
        return
    if "TORCHELASTIC_RUN_ID" not in environment:
        raise InvalidSetting("straggler 'restart' takes workers started by torchrun, got others")
    alike = environment.get("LOCAL_WORLD_SIZE", "1")
    if alike != "1":
        raise InvalidSetting(
            "straggler 'restart' takes one worker per torchrun agent (--nproc-per-node 1), as a "
            f"whole agent leaves, got {alike}"
        )


class Restart:
    """Restarts the job without a straggler, from a checkpoint that the user saves."""

    def __init__(self, checkpoint: Checkpoint, collective: ProcessGroupCollective) -> None:
        self._checkpoint = checkpoint
        self._collective = collective

    def without(self, straggler: int, name: str) -> None:
        """End this worker, so that the job continues without a straggler; all workers call it."""
        self._checkpoint()
        with self._collective.explained():
            dist.barrier(self._collective.group)
        leave(self._collective.worker, name, straggler)


def leave(worker: int, name: str, straggler: int) -> None:
    """End this worker, so that the job continues without the straggler."""
    if worker != straggler:
        raise SystemExit(f"evenstep: restarting without worker {name}, which is too slow")
    # After this signal the agent leaves the rendezvous open for the others.
    os.kill(os.getppid(), signal.SIGTERM)
    time.sleep(_FAREWELL)
    raise SystemExit(f"evenstep: the agent of worker {name} must end within {_FAREWELL:g} s")
