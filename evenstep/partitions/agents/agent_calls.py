"""The calls of an agent, applied to its partition one after the other, on one thread.

Times are given. Messages for other agents go to the senders; those for the manager wait here until
it collects them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from evenstep.errors import InvalidSetting, Refused
from evenstep.manager.access import is_loopback, parse_address
from evenstep.partitions.agents.sender import Senders
from evenstep.partitions.agents.thrift_messages import (
    MAX_CHUNK,
    MAX_SAMPLES,
    pack_samples,
    to_struct,
    types,
)
from evenstep.partitions.handover.giver import GiverRecord
from evenstep.partitions.handover.protocol import (
    MANAGER,
    Begin,
    Envelope,
    Offer,
    Staged,
    Wanted,
    check_name,
)
from evenstep.partitions.handover.protocol import Refused as Refusal
from evenstep.partitions.handover.receiver import WINDOW, ReceiverRecord
from evenstep.partitions.store import Agent

SHORTEST_SILENCE, LONGEST_SILENCE = 0.5, 10.0
"""Seconds without a message about a hand-over after which this agent repeats its own."""


@dataclass(frozen=True)
class _Silence:
    """When to repeat the message of a hand-over."""

    until: float
    length: float = SHORTEST_SILENCE


class AgentCalls:
    """Carries out calls, and repeats messages that were not answered."""

    def __init__(self, agent: Agent, senders: Senders, only_loopback: bool) -> None:
        self._agent, self._senders = agent, senders
        self._only_loopback = only_loopback
        self._for_manager: dict[str, Envelope] = {}
        self._silences: dict[str, _Silence] = {}

    def introduce(self, addresses: Mapping[str, str]) -> None:
        """Store the addresses of other agents: without token and TLS, on this machine only."""
        for name, address in addresses.items():
            check_name("partition", name)
            host, _ = parse_address(address)
            if self._only_loopback and not is_loopback(host):
                raise InvalidSetting(
                    f"the agent of {name} must be on loopback, as this one has no token and TLS; "
                    f"got {address}"
                )
        self._senders.introduce(addresses)
        self._silences.clear()

    def deliver(self, envelope: Envelope, now: float) -> None:
        """Handle a message; its effect is durable afterwards."""
        if envelope.to != self._agent.partition.name:
            raise InvalidSetting(
                f"the partition of this agent is {self._agent.partition.name}, got {envelope.to}"
            )
        message = envelope.message
        if isinstance(message, (Begin, Offer)):
            self._check_size(len(message.samples), message.chunk_size)
        if isinstance(message, Wanted):
            # A chunk that waits is not read, and its checksums are not made, once more.
            waiting = self._senders.chunks(message.hand_over)
            numbers = tuple(n for n in message.numbers[:WINDOW] if n not in waiting)
            envelope = replace(envelope, message=replace(message, numbers=numbers))
        self._send(self._agent.handle(envelope))
        # Answers to what this agent repeats are no reason to repeat it soon.
        answers = isinstance(message, (Offer, Wanted, Staged, Refusal))
        silence = self._silences.get(message.hand_over)
        length = silence.length if answers and silence else SHORTEST_SILENCE
        self._silences[message.hand_over] = _Silence(now + length, length)

    def collect(self) -> Any:
        """Return the messages for the manager, and forget them."""
        some = [to_struct(envelope) for envelope in self._for_manager.values()]
        self._for_manager.clear()
        return types().Envelopes(envelopes=some)

    def describe(self) -> Any:
        """Return the Partition of `agent.thrift`."""
        index = self._agent.partition.index
        return types().Partition(
            name=index.name,
            data_set=index.dataset.digest,
            length=len(index.samples),
            version=index.version,
            row_bytes=index.layout.row.itemsize,
            hand_overs=self._hand_overs(),
            sent=self._senders.sent,
        )

    def begun(self, hand_over: str) -> Any:
        """Return the Begin of an open hand-over of this giver."""
        record = self._agent.partition.index.giver_records.get(hand_over)
        if record is None or record.final:
            raise Refused("CHANGED", f"{hand_over} must be open here, and given by this agent")
        return types().Begin(
            hand_over=hand_over,
            receiver=record.receiver,
            samples=pack_samples(record.samples),
            chunk_size=record.chunk_size,
        )

    def samples(self, first: int, version: int) -> Any:
        """Return some samples from a position on, with their labels."""
        partition = self._agent.partition
        if version != partition.index.version:
            text = f"the index has version {partition.index.version}, got {version}"
            raise Refused("CHANGED", text)
        if not 0 <= first <= len(partition):
            raise InvalidSetting(f"a position must be 0 to {len(partition)}, got {first}")
        positions = np.arange(first, min(first + MAX_SAMPLES, len(partition)))
        labels = partition.labels_at(positions)
        return types().Samples(
            samples=pack_samples(partition.samples[positions]),
            labels=None if labels is None else pack_samples(labels),
        )

    def compact(self) -> int:
        """Delete the rows of samples that have left."""
        return self._agent.partition.compact()

    def sweep(self, now: float) -> None:
        """Repeat messages that were not answered for a while."""
        still_open = self._agent.partition.index.open_hand_overs
        for gone in self._silences.keys() - still_open:
            del self._silences[gone]
        for envelope in self._agent.retry():
            hand_over = envelope.message.hand_over
            silence = self._silences.get(hand_over, _Silence(-math.inf))
            if now >= silence.until and not self._senders.is_busy(hand_over):
                self._send([envelope])
                length = min(2 * silence.length, LONGEST_SILENCE)
                self._silences[hand_over] = _Silence(now + silence.length, length)

    def _send(self, envelopes: list[Envelope]) -> None:
        for envelope in envelopes:
            if envelope.to == MANAGER:
                self._for_manager[envelope.message.hand_over] = envelope
            else:
                self._senders.send(envelope)

    def _check_size(self, num_samples: int, chunk_size: int) -> None:
        row_bytes = self._agent.partition.index.layout.row.itemsize
        size = row_bytes * min(chunk_size, num_samples)
        if num_samples > MAX_SAMPLES or size > MAX_CHUNK:
            raise InvalidSetting(
                f"a hand-over must have at most {MAX_SAMPLES} samples in chunks of at most "
                f"{MAX_CHUNK} bytes, got {num_samples} in chunks of {size}"
            )

    def _hand_overs(self) -> list[Any]:
        index = self._agent.partition.index
        gives = [
            _open(record, index.name, record.receiver, 0)
            for record in index.giver_records.values()
            if not record.final
        ]
        takes = [
            _open(record, record.giver, index.name, len(record.chunks))
            for record in index.receiver_records.values()
            if not record.final
        ]
        return gives + takes


def _open(record: GiverRecord | ReceiverRecord, giver: str, receiver: str, staged: int) -> Any:
    return types().HandOver(
        hand_over=record.hand_over,
        giver=giver,
        receiver=receiver,
        phase=record.phase,
        samples=len(record.samples),
        chunk_size=record.chunk_size,
        staged=staged,
    )
