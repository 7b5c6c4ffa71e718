"""An agent: carries out hand-overs on a partition on disk, message by message.

It does the I/O that the reactions of `evenstep.partitions.handover` ask for: records are durable
before `handle` returns the messages to send. The owner of the network calls `handle` with each
message, sends what it returns, and calls `retry` at the start and after a silence.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from evenstep.errors import PartitionError
from evenstep.partitions.handover import giver, receiver
from evenstep.partitions.handover.giver import GiverRecord
from evenstep.partitions.handover.protocol import (
    Begin,
    Chunk,
    Envelope,
    Given,
    Message,
    Offer,
    Reaction,
    Withdrawn,
    chunk_checksum,
    chunk_of,
)
from evenstep.partitions.handover.receiver import ReceiverRecord
from evenstep.partitions.store.blocks import chunk_name, is_chunk, stored_chunks
from evenstep.partitions.store.index import Index
from evenstep.partitions.store.partition import Partition
from evenstep.partitions.store.rows import Rows, octets_of


class Agent:
    """Gives and receives samples for a partition that is open for writing."""

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        dtype = partition.index.layout.row
        for record in list(partition.index.receiver_records.values()):
            if record.phase == "staging":
                found = receiver.recover(record, stored_chunks(partition.folder, record, dtype))
                assert found.record is not None
                self._write_receiver(partition.index, record, found.record)

    def handle(self, envelope: Envelope) -> list[Envelope]:
        """React to a message, and return the messages to send."""
        message, sender = envelope.message, envelope.sender
        if isinstance(message, (Offer, Chunk, Given, Withdrawn)):
            return self._receive(message, sender)
        return self._give(message, sender)

    def retry(self) -> list[Envelope]:
        """Return the messages to send after a start, or when no answer comes."""
        index = self.partition.index
        gives = [giver.retry(record) for record in index.giver_records.values() if not record.final]
        takes = [
            receiver.retry(record) for record in index.receiver_records.values() if not record.final
        ]
        return [self._from_here(to, message) for some in gives + takes for to, message in some]

    def _give(self, message: Message, sender: str) -> list[Envelope]:
        index = self.partition.index
        record = index.giver_records.get(message.hand_over)
        if isinstance(message, Begin):
            free = _free(index) if record is None else ()
            reaction = giver.begin(record, message, free, index.dataset.layout)
        else:
            reaction = giver.give(record, message, sender)
        chunks: list[Envelope] = []
        if reaction.chunks and record is not None:
            try:
                chunks = [self._chunk(record, number) for number in reaction.chunks]
            except PartitionError as error:
                reaction = giver.withdraw(record, str(error))
        if reaction.record is not None:
            self._write_giver(index, reaction.record)
        return [*self._send(reaction), *chunks]

    def _write_giver(self, index: Index, record: GiverRecord) -> None:
        if record.phase == "given":
            index = index.without(record.samples)
        self.partition.update(
            replace(index, giver_records={**index.giver_records, record.hand_over: record})
        )

    def _receive(self, message: Message, sender: str) -> list[Envelope]:
        index = self.partition.index
        record = index.receiver_records.get(message.hand_over)
        if isinstance(message, Offer):
            held = _held(index) if record is None else ()
            layout, width = index.dataset.layout, index.layout.row.itemsize
            room = self.partition.room
            reaction = receiver.consider(record, message, sender, held, layout, width, room)
        else:
            reaction = receiver.take(record, message, sender)
        if isinstance(message, Chunk) and record is not None and _counts(reaction.record, message):
            wrong = self._store(record, message)
            if wrong:
                reaction = receiver.refuse(record, wrong)
        if reaction.record is not None:
            self._write_receiver(index, record, reaction.record)
        return list(self._send(reaction))

    def _write_receiver(
        self, index: Index, before: ReceiverRecord | None, record: ReceiverRecord
    ) -> None:
        records = {**index.receiver_records, record.hand_over: record}
        if before is not None and before.phase == record.phase:
            self.partition.note(replace(index, receiver_records=records))
            return
        if record.phase == "adopted" and before is not None:
            for number in range(-(-len(before.samples) // before.chunk_size)):
                samples = np.array(chunk_of(before.samples, before.chunk_size, number))
                index = index.joined_by(chunk_name(before.hand_over, number), samples)
        self.partition.update(replace(index, receiver_records=records))
        if record.phase == "dropped":
            self.partition.tidy()

    def _store(self, record: ReceiverRecord, chunk: Chunk) -> str:
        """Write a chunk to disk, or return why not."""
        rows = _parse(chunk.payload, self.partition.index)
        if rows is None or not is_chunk(rows, record, chunk.number):
            return f"chunk {chunk.number} must hold the rows that were offered, and whole"
        try:
            self.partition.write_block(chunk_name(record.hand_over, chunk.number), rows)
        except OSError as error:
            return f"chunk {chunk.number} cannot be written: {error.strerror}"
        return ""

    def _chunk(self, record: GiverRecord, number: int) -> Envelope:
        samples = np.array(chunk_of(record.samples, record.chunk_size, number))
        payload = octets_of(self.partition.rows(samples))
        checksum = chunk_checksum(record.hand_over, number, payload)
        return self._from_here(record.receiver, Chunk(record.hand_over, number, payload, checksum))

    def _send(self, reaction: Reaction[GiverRecord] | Reaction[ReceiverRecord]) -> list[Envelope]:
        return [self._from_here(to, message) for to, message in reaction.send]

    def _from_here(self, to: str, message: Message) -> Envelope:
        return Envelope(self.partition.name, to, message)


def _free(index: Index) -> set[int]:
    """Return the listed samples that no hand-over offers."""
    offered = (r.samples for r in index.giver_records.values() if r.phase == "offered")
    return set(index.samples.tolist()).difference(*offered)


def _held(index: Index) -> set[int]:
    """Return the samples that are listed or about to be."""
    coming = (r.samples for r in index.receiver_records.values() if not r.final)
    return set(index.samples.tolist()).union(*coming)


def _counts(record: ReceiverRecord | None, chunk: Chunk) -> bool:
    return record is not None and chunk.number in record.chunks


def _parse(payload: bytes | memoryview, index: Index) -> Rows | None:
    dtype = index.layout.row
    return np.frombuffer(payload, dtype) if len(payload) % dtype.itemsize == 0 else None
