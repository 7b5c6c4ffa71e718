"""Tasks: the manager's side of hand-overs, as pure functions over its record.

The manager may write its tasks down, to go on after a crash, or not: see `hand_over.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from evenstep.partition.hand_over import Reaction
from evenstep.partition.messages import Begin, Cancel, Commit, Done, Failed, Message, Ready

CHUNK_SIZE = 1024
"""Samples per chunk, unless told otherwise."""
BANDWIDTH = 5e6
"""Bytes of rows a second, each way, unless told otherwise: an agent takes some 3 % of a core."""


@dataclass(frozen=True)
class Task:
    """A hand-over that the manager wants.

    >>> task = Task("m1-0", "w0", "w1", (3, 4))
    >>> task = manage(task, Ready("m1-0"), "w0").record
    >>> task.phase, commit(task).send
    ('ready', (('w0', Commit(hand_over='m1-0')),))
    """

    hand_over: str
    """A name that no hand-over had before."""
    giver: str
    receiver: str
    samples: tuple[int, ...]
    chunk_size: int = CHUNK_SIZE
    phase: Literal["begun", "ready", "committing", "cancelling", "done", "failed"] = "begun"
    reason: str = ""

    @property
    def final(self) -> bool:
        """Whether the hand-over is over."""
        return self.phase in ("done", "failed")


def manage(task: Task | None, message: Message, sender: str) -> Reaction[Task]:
    """React to what a giver says; None stands for a hand-over that the manager does not know."""
    if task is None:
        if isinstance(message, Ready):
            cancel_it = Cancel(message.hand_over, "the manager does not know of it")
            return Reaction(send=((sender, cancel_it),))
        return Reaction()
    if task.final:
        return Reaction()
    if isinstance(message, Done):
        return Reaction(replace(task, phase="done"))
    if isinstance(message, Failed):
        return Reaction(replace(task, phase="failed", reason=message.reason))
    if isinstance(message, Ready) and task.phase == "begun":
        return Reaction(replace(task, phase="ready"))
    return Reaction(send=retry(task) if task.phase in ("committing", "cancelling") else ())


def commit(task: Task) -> Reaction[Task]:
    """Give the word, at an iteration boundary of the manager's choice; only a ready task can."""
    if task.phase != "ready":
        return Reaction()
    committing = replace(task, phase="committing")
    return Reaction(committing, retry(committing))


def cancel(task: Task, reason: str) -> Reaction[Task]:
    """Call a hand-over off; the giver says what became of it, as it may be too late."""
    if task.final:
        return Reaction()
    cancelling = replace(task, phase="cancelling", reason=reason)
    return Reaction(cancelling, retry(cancelling))


def retry(task: Task) -> tuple[tuple[str, Message], ...]:
    """Return what to send after a crash, or when no answer comes: a function of the record."""
    message: Message
    if task.phase in ("begun", "ready"):
        message = Begin(task.hand_over, task.receiver, task.samples, task.chunk_size)
    elif task.phase == "committing":
        message = Commit(task.hand_over)
    elif task.phase == "cancelling":
        message = Cancel(task.hand_over, task.reason)
    else:
        return ()
    return ((task.giver, message),)
