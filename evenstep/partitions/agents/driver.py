"""The driver of a migration: the paper's DataPartitionManager, for agents on several machines.

It begins hand-overs and commits them. It has no state that matters: agents do the work among
themselves and keep records; the driver visits them in rounds, delivers its messages and collects
theirs. If it dies, the next one continues (`finish`).
"""

from __future__ import annotations

import logging
import ssl
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from numpy.typing import ArrayLike

from evenstep.errors import InvalidSetting, MalformedMessage, ManagerUnreachable, Refused
from evenstep.partitions.agents.remote_agent import RemoteAgent, signature_of
from evenstep.partitions.agents.settings import PATIENCE
from evenstep.partitions.agents.thrift_messages import MAX_SAMPLES
from evenstep.partitions.handover import task
from evenstep.partitions.handover.protocol import (
    MANAGER,
    Begin,
    Envelope,
    Failed,
    Reaction,
    num_chunks,
)
from evenstep.partitions.handover.task import (
    CHUNK_SIZE,
    Task,
    last_word,
    plan_hand_overs,
    require_lost,
)

CHUNK_BYTES = 2**20
"""Bytes of a chunk, unless its number of samples is given."""

_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.02, 0.5
_SHORTEST_SILENCE, _LONGEST_SILENCE = 1.0, 10.0
_SECOND_ATTEMPT = 0.5
"""Seconds until an agent that did not answer is asked again; each further attempt takes twice as
long, up to `_LONGEST_SILENCE`."""

_FOR_GOOD = (MalformedMessage, ssl.SSLCertVerificationError)
"""Reasons that no further attempt changes: the port of another program, a wrong certificate."""

Answer = TypeVar("Answer")

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Progress:
    """How far a migration has come."""

    over: int
    """Hand-overs that are over."""
    hand_overs: int
    staged: int
    """Chunks of the others that are on the disks of their receivers."""
    chunks: int
    """Chunks of all of them."""


class Migration:
    """Drives hand-overs between the agents of all workers; to be used in a `with` statement."""

    def __init__(
        self,
        agents: Sequence[RemoteAgent],
        patience: float = PATIENCE,
        on_progress: Callable[[Progress], None] = lambda progress: None,
    ) -> None:
        self._every = tuple(agents)
        self._patience, self._on_progress = patience, on_progress
        self._pool = ThreadPoolExecutor(min(32, max(1, len(agents))), "evenstep-visit")
        self._closed = threading.Event()
        self._names: list[str] = []
        self._agents: dict[str, RemoteAgent] = {}
        self._about: dict[str, Any] = {}
        """The Partition of each agent at the last visit."""
        self._tasks: dict[str, Task] = {}

    @property
    def sizes(self) -> dict[str, int]:
        """Samples of each partition, at the last visit."""
        return {name: int(self._about[name].length) for name in self._names}

    @property
    def in_transit(self) -> list[str]:
        """Hand-overs whose samples have left one partition and are not known to be in the other."""
        every = [one for about in self._about.values() for one in about.hand_overs]
        return sorted({one.hand_over for one in every if one.phase == "given"})

    def plan(
        self,
        batch_sizes: ArrayLike | None,
        migration: str,
        minimum: int = 1,
        seed: int = 0,
        chunk_size: int | None = None,
        leaving: Collection[str] = (),
    ) -> tuple[Task, ...]:
        """Return the hand-overs that make partitions follow the batch sizes of the agents.

        The partitions that are `leaving` are divided among the others.
        """
        row_bytes = max(about.row_bytes for about in self._about.values())
        fitting = max(1, min(CHUNK_SIZE, CHUNK_BYTES // row_bytes))
        holdings = self._ask(RemoteAgent.holding)
        size = chunk_size or fitting
        return plan_hand_overs(
            holdings, batch_sizes, migration, minimum, seed, size, MAX_SAMPLES, leaving
        )

    def settle_lost(self, lost: Collection[str]) -> None:
        """End the hand-overs with partitions whose disks are lost, for good.

        Hand-overs that are fully staged are adopted, and all others are cancelled.
        """
        require_lost(lost, self._names)

        def settle(agent: RemoteAgent) -> None:
            about = agent.describe()
            for one in about.hand_overs:
                other = one.receiver if one.giver == about.name else one.giver
                if other in lost:
                    message = last_word(one.hand_over, one.phase)
                    agent.deliver(Envelope(other, about.name, message))

        self._ask(settle)

    def finish(self) -> tuple[Task, ...]:
        """Finish the hand-overs that an earlier manager began, and return their outcomes."""

        def begun(agent: RemoteAgent) -> list[Task]:
            about = agent.describe()
            return [
                agent.begun(one.hand_over)
                for one in about.hand_overs
                if one.giver == about.name and one.phase == "offered"
            ]

        return self.carry_out([one for tasks in self._ask(begun) for one in tasks])

    def carry_out(
        self, tasks: Sequence[Task], boundary: Callable[[], None] = lambda: None
    ) -> tuple[Task, ...]:
        """Carry out hand-overs, and return their outcomes.

        `boundary` is called once all are ready or have failed, and they are committed when it
        returns: it may wait for an iteration boundary. Tasks that are not final afterwards are
        open: their giver could not be reached, and a later `finish` continues with them.
        """
        self._tasks = {one.hand_over: one for one in tasks}
        if len(self._tasks) < len(tasks):
            raise InvalidSetting("hand-overs must have different names")
        addresses = {name: agent.address for name, agent in self._agents.items()}
        for agent in self._agents.values():
            agent.introduce(addresses)
        outgoing = self._everything_again()
        if self._rounds(outgoing, self._patience, boundary):
            return tuple(self._tasks.values())
        reason = f"no progress within {self._patience:g} s"
        outgoing = defaultdict(list)
        for one in list(self._tasks.values()):
            self._apply(task.cancel(one, reason), outgoing)
        self._rounds(outgoing, min(self._patience, _LONGEST_SILENCE), lambda: None)
        return tuple(self._described(one, reason) for one in self._tasks.values())

    def compact(self) -> int:
        """Delete the rows of samples that have left, and return their bytes."""
        return sum(self._ask(RemoteAgent.compact))

    def close(self) -> None:
        self._closed.set()
        self._pool.shutdown()
        for agent in self._every:
            agent.close()

    def __enter__(self) -> Migration:
        try:
            self._meet()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _meet(self) -> None:
        """Ask each agent for its partition."""
        found = self._ask(RemoteAgent.describe)
        self._names = [about.name for about in found]
        self._agents = dict(zip(self._names, self._every, strict=True))
        self._about = dict(zip(self._names, found, strict=True))
        if len(self._agents) < len(found):
            raise InvalidSetting(f"agents must have different partitions, got {self._names}")
        if len({about.data_set for about in found}) > 1:
            raise InvalidSetting("partitions must be of one data set, got different ones")

    def _ask(self, question: Callable[[RemoteAgent], Answer]) -> list[Answer]:
        """Ask all agents at once, and return their answers.

        A question must be one that can be asked twice: an agent that does not answer is asked
        again until the patience is over, as it may be starting again.
        """
        deadline = time.monotonic() + self._patience
        asked = [self._pool.submit(self._insist, question, one, deadline) for one in self._every]
        return [answer.result() for answer in asked]

    def _insist(
        self, question: Callable[[RemoteAgent], Answer], agent: RemoteAgent, deadline: float
    ) -> Answer:
        pause = _SECOND_ATTEMPT
        while True:
            try:
                return question(agent)
            except ManagerUnreachable as error:
                left = deadline - time.monotonic()
                if left <= 0 or isinstance(error.__cause__, _FOR_GOOD):
                    raise
                if pause == _SECOND_ATTEMPT:
                    _log.warning("%s; asking again for up to %.0f s", error, left)
                if self._closed.wait(min(pause, left)):
                    raise
            pause = min(2 * pause, _LONGEST_SILENCE)

    def _rounds(
        self,
        outgoing: defaultdict[str, list[Envelope]],
        patience: float,
        boundary: Callable[[], None],
    ) -> bool:
        """Visit all agents again and again; return whether everything was over in time."""
        pause, silence = _SHORTEST_PAUSE, _SHORTEST_SILENCE
        progressed = said = time.monotonic()
        while True:
            changed, reached, outgoing = self._round(outgoing)
            if self._all_ready():
                boundary()
                for one in list(self._tasks.values()):
                    self._apply(task.commit(one), outgoing)
            now = time.monotonic()
            if changed:
                progressed, silence = now, _SHORTEST_SILENCE
                self._on_progress(_progress_of(self._tasks.values(), self._about.values()))
            if reached and self._over:
                return True
            if now - progressed > patience:
                return False
            if now - max(progressed, said) > silence:
                outgoing = self._everything_again()
                said, silence = now, min(2 * silence, _LONGEST_SILENCE)
            # Answers come soon or, while chunks go from disk to disk, late.
            pause = _SHORTEST_PAUSE if outgoing else min(2 * pause, _LONGEST_PAUSE)
            time.sleep(pause)

    def _round(
        self, outgoing: Mapping[str, list[Envelope]]
    ) -> tuple[bool, bool, defaultdict[str, list[Envelope]]]:
        """Visit all agents at once; return if something changed, if all answered, and replies."""
        said = [outgoing.get(name, []) for name in self._names]
        visits = list(self._pool.map(self._visit, self._names, said))
        changed, answers = False, defaultdict[str, list[Envelope]](list)
        for name, (envelopes, about) in zip(self._names, visits, strict=True):
            if about is not None:
                changed |= signature_of(about) != signature_of(self._about[name])
                self._about[name] = about
            for envelope in envelopes:
                known = self._tasks.get(envelope.message.hand_over)
                reaction = task.manage(known, envelope.message, envelope.sender)
                changed |= reaction.record is not None
                self._apply(reaction, answers)
        return changed, all(about is not None for _, about in visits), answers

    def _visit(self, name: str, messages: Sequence[Envelope]) -> tuple[list[Envelope], Any]:
        """Deliver messages, and return those for the manager and the Partition of the agent."""
        agent, answers = self._agents[name], list[Envelope]()
        try:
            for envelope in messages:
                answers += self._deliver(agent, envelope)
            return answers + agent.collect(), agent.describe()
        except (ManagerUnreachable, Refused):
            return answers, None

    def _deliver(self, agent: RemoteAgent, envelope: Envelope) -> list[Envelope]:
        try:
            agent.deliver(envelope)
        except Refused as error:
            if error.problem != "INVALID" or not isinstance(envelope.message, Begin):
                raise
            # Nothing was written: the effect is that of a giver that withdraws.
            failed = Failed(envelope.message.hand_over, str(error))
            return [Envelope(envelope.to, MANAGER, failed)]
        return []

    def _all_ready(self) -> bool:
        phases = {one.phase for one in self._tasks.values() if not one.final}
        return "ready" in phases and phases <= {"ready", "committing"}

    @property
    def _over(self) -> bool:
        at_rest = not any(about.hand_overs for about in self._about.values())
        return at_rest and all(one.final for one in self._tasks.values())

    def _everything_again(self) -> defaultdict[str, list[Envelope]]:
        again = defaultdict[str, list[Envelope]](list)
        for one in self._tasks.values():
            if one.phase != "ready":
                self._apply(Reaction(send=task.retry(one)), again)
        return again

    def _apply(self, reaction: Reaction[Task], outgoing: Mapping[str, list[Envelope]]) -> None:
        if reaction.record is not None:
            self._tasks[reaction.record.hand_over] = reaction.record
        for to, message in reaction.send:
            if to in self._agents:
                outgoing[to].append(Envelope(MANAGER, to, message))
            elif message.hand_over in self._tasks:
                # A giver without an agent has received no Commit of this manager.
                one, reason = self._tasks[message.hand_over], f"there is no agent of {to}"
                self._tasks[message.hand_over] = replace(one, phase="failed", reason=reason)

    def _described(self, one: Task, reason: str) -> Task:
        if one.final:
            return one
        return replace(one, reason=f"{reason}, and nothing heard from {one.giver}: still open")


def _progress_of(tasks: Collection[Task], partitions: Collection[Any]) -> Progress:
    """Return how far tasks are; partitions are those of `agent.thrift`."""
    staged = {
        one.hand_over: one.staged
        for partition in partitions
        for one in partition.hand_overs
        if one.receiver == partition.name
    }
    return Progress(
        sum(one.final for one in tasks),
        len(tasks),
        sum(staged.get(one.hand_over, 0) for one in tasks),
        sum(num_chunks(len(one.samples), one.chunk_size) for one in tasks),
    )
