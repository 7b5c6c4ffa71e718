"""Tasks: the manager's side of hand-overs, as pure functions over its records.

A task is a hand-over that the manager wants. It may write its tasks down, to continue after a
crash, or not (see `protocol.py`). Where the disk of a partition is lost, the manager sends the last
message in its place, so that open hand-overs with it end.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from numpy.typing import ArrayLike

from evenstep.core import Ints
from evenstep.errors import InvalidSetting
from evenstep.partitions.handover.protocol import (
    Adopted,
    Begin,
    Cancel,
    Commit,
    Done,
    Failed,
    Given,
    Message,
    Reaction,
    Ready,
    Refused,
    Withdrawn,
)
from evenstep.partitions.rules.choice import assign_samples
from evenstep.partitions.rules.plan import plan_migration, targets_when

CHUNK_SIZE = 1024
"""Samples per chunk, by default."""


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

    @property
    def outcome(self) -> str:
        """`done`, `failed`, or `open` while the giver has not reported the end."""
        return self.phase if self.final else "open"


@dataclass(frozen=True)
class MigrationOutcome:
    """The outcome of a migration, from that of its hand-overs."""

    moved: int
    """Samples that are with their receivers."""
    problems: Sequence[str]
    """Why others are not."""
    is_over: bool
    """Whether every hand-over came to an end, so that each sample is listed by one partition."""

    @classmethod
    def of(cls, tasks: Sequence[Task]) -> MigrationOutcome:
        """Return the outcome of these hand-overs.

        >>> failed = Task("m1-0", "w0", "w1", (3, 4), phase="failed", reason="quota")
        >>> MigrationOutcome.of([failed, Task("m1-1", "w0", "w2", (5,), phase="done")])
        MigrationOutcome(moved=1, problems=('w0 to w1: quota',), is_over=True)
        """
        return cls(
            sum(len(task.samples) for task in tasks if task.phase == "done"),
            tuple(
                f"{task.giver} to {task.receiver}: {task.reason or task.outcome}"
                for task in tasks
                if task.phase != "done"
            ),
            is_over=all(task.final for task in tasks),
        )


def manage(task: Task | None, message: Message, sender: str) -> Reaction[Task]:
    """React to a message of a giver; None stands for a hand-over that the manager does not know."""
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
    """Let the giver release the samples, at an iteration boundary; only a ready task can."""
    if task.phase != "ready":
        return Reaction()
    committing = replace(task, phase="committing")
    return Reaction(committing, retry(committing))


def cancel(task: Task, reason: str) -> Reaction[Task]:
    """Cancel a hand-over; the giver reports the outcome, as it may be too late."""
    if task.final:
        return Reaction()
    cancelling = replace(task, phase="cancelling", reason=reason)
    return Reaction(cancelling, retry(cancelling))


def retry(task: Task) -> tuple[tuple[str, Message], ...]:
    """Return the messages to send after a crash, or when no answer comes."""
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


@dataclass(frozen=True, eq=False)
class Holding:
    """The content of a partition."""

    name: str
    samples: Ints
    labels: Ints | None = None
    """Samples are stratified by them, if all partitions have labels."""
    open_hand_overs: Collection[str] = ()


def plan_hand_overs(
    holdings: Sequence[Holding],
    batch_sizes: ArrayLike | None,
    migration: str,
    minimum: int = 1,
    seed: int = 0,
    chunk_size: int = CHUNK_SIZE,
    largest: int | None = None,
    leaving: Collection[str] = (),
) -> tuple[Task, ...]:
    """Return the hand-overs that make partitions follow the batch sizes.

    `migration` is a name that no migration had before. With `largest`, a transfer of more samples
    than that becomes several hand-overs. The partitions that are `leaving` are divided among the
    others; without batch sizes nothing else moves.

    >>> import numpy as np
    >>> a, b = Holding("a", np.arange(0, 6)), Holding("b", np.arange(6, 12))
    >>> tasks = plan_hand_overs([a, b], [1, 3], "m1", largest=2)
    >>> [(task.hand_over, task.giver, task.receiver, len(task.samples)) for task in tasks]
    [('m1-0', 'a', 'b', 2), ('m1-1', 'a', 'b', 1)]
    """
    for holding in holdings:
        if holding.open_hand_overs:
            begun = ", ".join(sorted(holding.open_hand_overs))
            raise InvalidSetting(f"{holding.name} must have no open hand-overs, got {begun}")
    sizes = [len(holding.samples) for holding in holdings]
    names = [holding.name for holding in holdings]
    targets = targets_when(leaving, names, sizes, batch_sizes, minimum)
    plan = plan_migration(sizes, targets)
    known = [holding.labels for holding in holdings if holding.labels is not None]
    chosen = assign_samples(
        plan.transfers,
        [holding.samples for holding in holdings],
        seed,
        known if len(known) == len(holdings) else None,
    )
    pieces = [
        (transfer, samples[at : at + (largest or len(samples))])
        for transfer, samples in zip(plan.transfers, chosen, strict=True)
        for at in range(0, len(samples), largest or len(samples))
    ]
    return tuple(
        Task(
            f"{migration}-{number}",
            holdings[transfer.giver].name,
            holdings[transfer.receiver].name,
            tuple(samples.tolist()),
            chunk_size,
        )
        for number, (transfer, samples) in enumerate(pieces)
    )


def require_lost(lost: Collection[str], names: Collection[str]) -> None:
    """Raise InvalidSetting where a partition that is present is called lost.

    Its samples would be doubled, as receivers take over what it was handing out.
    """
    if here := sorted(set(lost).intersection(names)):
        raise InvalidSetting(f"a lost partition must not be here, got {here[0]}, which is")


def last_word(hand_over: str, phase: str) -> Message:
    """Return the message that a lost partition would send to the other party, in this phase.

    A receiver that has staged all chunks adopts them: the samples are nowhere else any more. One
    that lacks chunks drops what it has. A giver keeps what it has only offered; samples that it
    gave to the lost partition are lost too.

    >>> last_word("m1-0", "staged"), last_word("m1-0", "given")
    (Given(hand_over='m1-0'), Adopted(hand_over='m1-0'))
    """
    why = "its partition is lost"
    words: dict[str, Message] = {
        "offered": Refused(hand_over, why),
        "given": Adopted(hand_over),
        "staging": Withdrawn(hand_over, why),
        "staged": Given(hand_over),
    }
    return words[phase]
