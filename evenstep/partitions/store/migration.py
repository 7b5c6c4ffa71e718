"""Migrations between partitions that one process can write to, without a network.

The agents and messages are those of migrations between machines, and a queue carries them. The
manager begins all hand-overs, and commits them once every one is ready or has failed, so that
workers can change over at one iteration boundary.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence

from numpy.typing import ArrayLike

from evenstep.errors import InvalidSetting
from evenstep.partitions.handover import task
from evenstep.partitions.handover.protocol import MANAGER, Envelope, Failed, Message, Reaction
from evenstep.partitions.handover.task import (
    CHUNK_SIZE,
    Holding,
    Task,
    last_word,
    plan_hand_overs,
    require_lost,
)
from evenstep.partitions.store.agent import Agent
from evenstep.partitions.store.partition import Partition

_ATTEMPTS = 3
"""How often all parties send again before a hand-over without progress is cancelled."""


def plan_tasks(
    partitions: Sequence[Partition],
    batch_sizes: ArrayLike | None,
    migration: str,
    minimum: int = 1,
    seed: int = 0,
    chunk_size: int = CHUNK_SIZE,
    leaving: Collection[str] = (),
) -> tuple[Task, ...]:
    """Return the hand-overs that make partitions follow the batch sizes.

    `migration` is a name that no migration had before. Samples are stratified by the label, where
    the partitions have one. Finish what is open first. The partitions that are `leaving` are
    divided among the others; without batch sizes nothing else moves.
    """
    holdings = [
        Holding(one.name, one.samples, one.labels, one.index.open_hand_overs) for one in partitions
    ]
    return plan_hand_overs(
        holdings, batch_sizes, migration, minimum, seed, chunk_size, leaving=leaving
    )


def settle_lost(partitions: Sequence[Partition], lost: Collection[str]) -> None:
    """End the hand-overs with partitions whose disks are lost, for good.

    Hand-overs that are fully staged are adopted, and all others are cancelled.
    """
    require_lost(lost, [partition.name for partition in partitions])
    for partition in partitions:
        agent = Agent(partition)
        for record in partition.index.open_records:
            if record.other in lost:
                message = last_word(record.hand_over, record.phase)
                agent.handle(Envelope(record.other, partition.name, message))


def finish(partitions: Sequence[Partition]) -> tuple[Task, ...]:
    """Finish the hand-overs that an earlier run began, and return their outcomes."""
    return carry_out(partitions, open_tasks(partitions))


def open_tasks(partitions: Sequence[Partition]) -> tuple[Task, ...]:
    """Return the tasks of hand-overs that were begun and not decided."""
    return tuple(
        Task(record.hand_over, partition.name, record.receiver, record.samples, record.chunk_size)
        for partition in partitions
        for record in partition.index.giver_records.values()
        if record.phase == "offered"
    )


def carry_out(partitions: Sequence[Partition], tasks: Sequence[Task]) -> tuple[Task, ...]:
    """Carry out hand-overs to the end, and return their outcomes.

    Also finishes what an earlier run left: a hand-over whose samples were given is completed, and
    one that was only begun is cancelled, unless it is among the tasks (`open_tasks`).
    """
    return _Carrier(partitions, tasks).run()


class _Carrier:
    """The manager and the network of one migration."""

    def __init__(self, partitions: Sequence[Partition], tasks: Sequence[Task]) -> None:
        self._agents = {partition.name: Agent(partition) for partition in partitions}
        self._tasks = {task.hand_over: task for task in tasks}
        if len(self._agents) < len(partitions) or len(self._tasks) < len(tasks):
            raise InvalidSetting("partitions and hand-overs must have different names")
        self._queue: deque[Envelope] = deque()

    def run(self) -> tuple[Task, ...]:
        for _ in range(_ATTEMPTS):
            self._everybody_sends()
            self._deliver()
            self._commit()
            if self._over:
                break
        for one in [one for one in self._tasks.values() if not one.final]:
            self._apply(task.cancel(one, f"no progress after {_ATTEMPTS} attempts"))
        self._deliver()
        return tuple(self._tasks.values())

    @property
    def _over(self) -> bool:
        at_rest = not any(a.partition.index.open_hand_overs for a in self._agents.values())
        return at_rest and all(one.final for one in self._tasks.values())

    def _everybody_sends(self) -> None:
        for one in self._tasks.values():
            self._send(task.retry(one))
        for agent in self._agents.values():
            self._queue += agent.retry()

    def _commit(self) -> None:
        if all(one.final or one.phase in ("ready", "committing") for one in self._tasks.values()):
            for one in list(self._tasks.values()):
                self._apply(task.commit(one))
            self._deliver()

    def _deliver(self) -> None:
        while self._queue:
            envelope = self._queue.popleft()
            hand_over = envelope.message.hand_over
            if envelope.to == MANAGER:
                one = self._tasks.get(hand_over)
                self._apply(task.manage(one, envelope.message, envelope.sender))
            elif envelope.to in self._agents:
                self._queue += self._agents[envelope.to].handle(envelope)
            elif envelope.sender == MANAGER:
                # A giver that is not here has given nothing by this manager's word.
                failed = Failed(hand_over, f"there is no partition {envelope.to}")
                self._queue.append(Envelope(envelope.to, MANAGER, failed))

    def _apply(self, reaction: Reaction[Task]) -> None:
        if reaction.record is not None:
            self._tasks[reaction.record.hand_over] = reaction.record
        self._send(reaction.send)

    def _send(self, messages: Sequence[tuple[str, Message]]) -> None:
        self._queue += [Envelope(MANAGER, to, message) for to, message in messages]
