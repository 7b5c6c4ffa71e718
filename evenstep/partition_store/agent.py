"""An agent: carries out hand-overs on a partition on disk, message by message.

It does the I/O that the reactions of `evenstep.partition` ask for: what must be durable is written
before `handle` returns what is to be sent. Whoever owns the network calls `handle` with what comes,
sends what it returns, and calls `retry` at the start and whenever nothing has come for a while.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from evenstep.errors import PartitionError
from evenstep.partition import giving, taking
from evenstep.partition.giving import Giving
from evenstep.partition.hand_over import Reaction, chunk_checksum, chunk_of
from evenstep.partition.messages import (
    Begin,
    Chunk,
    Envelope,
    Given,
    Message,
    Offer,
    Withdrawn,
)
from evenstep.partition.taking import Taking
from evenstep.partition_store.blocks import chunk_name, is_chunk, stored_chunks
from evenstep.partition_store.index import Index
from evenstep.partition_store.partition import Partition
from evenstep.partition_store.rows import Rows, octets_of


class Agent:
    """Gives and takes samples for a partition that is open for writing."""

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        dtype = partition.index.layout.row
        for record in list(partition.index.takings.values()):
            if record.phase == "staging":
                found = taking.recover(record, stored_chunks(partition.folder, record, dtype))
                assert found.record is not None
                self._write_taking(partition.index, record, found.record)

    def handle(self, envelope: Envelope) -> list[Envelope]:
        """React to a message, and return those to send."""
        message, sender = envelope.message, envelope.sender
        if isinstance(message, (Offer, Chunk, Given, Withdrawn)):
            return self._take(message, sender)
        return self._give(message, sender)

    def retry(self) -> list[Envelope]:
        """Return what to send after a start, or when no answer comes."""
        index = self.partition.index
        gives = [giving.retry(record) for record in index.givings.values() if not record.final]
        takes = [taking.retry(record) for record in index.takings.values() if not record.final]
        return [self._from_here(to, message) for some in gives + takes for to, message in some]

    def _give(self, message: Message, sender: str) -> list[Envelope]:
        index = self.partition.index
        record = index.givings.get(message.hand_over)
        if isinstance(message, Begin):
            free = _free(index) if record is None else ()
            reaction = giving.begin(record, message, free, index.dataset.layout)
        else:
            reaction = giving.give(record, message, sender)
        chunks: list[Envelope] = []
        if reaction.chunks and record is not None:
            try:
                chunks = [self._chunk(record, number) for number in reaction.chunks]
            except PartitionError as error:
                reaction = giving.withdraw(record, str(error))
        if reaction.record is not None:
            self._write_giving(index, reaction.record)
        return [*self._send(reaction), *chunks]

    def _write_giving(self, index: Index, record: Giving) -> None:
        if record.phase == "given":
            index = index.without(record.samples)
        self.partition.update(replace(index, givings={**index.givings, record.hand_over: record}))

    def _take(self, message: Message, sender: str) -> list[Envelope]:
        index = self.partition.index
        record = index.takings.get(message.hand_over)
        if isinstance(message, Offer):
            held = _held(index) if record is None else ()
            layout, width = index.dataset.layout, index.layout.row.itemsize
            room = self.partition.room
            reaction = taking.consider(record, message, sender, held, layout, width, room)
        else:
            reaction = taking.take(record, message, sender)
        if isinstance(message, Chunk) and record is not None and _counts(reaction.record, message):
            wrong = self._store(record, message)
            if wrong:
                reaction = taking.refuse(record, wrong)
        if reaction.record is not None:
            self._write_taking(index, record, reaction.record)
        return list(self._send(reaction))

    def _write_taking(self, index: Index, before: Taking | None, record: Taking) -> None:
        takings = {**index.takings, record.hand_over: record}
        if before is not None and before.phase == record.phase:
            self.partition.note(replace(index, takings=takings))
            return
        if record.phase == "adopted" and before is not None:
            for number in range(-(-len(before.samples) // before.chunk_size)):
                samples = np.array(chunk_of(before.samples, before.chunk_size, number))
                index = index.joined_by(chunk_name(before.hand_over, number), samples)
        self.partition.update(replace(index, takings=takings))
        if record.phase == "dropped":
            self.partition.tidy()

    def _store(self, record: Taking, chunk: Chunk) -> str:
        """Write a chunk to disk, or return why not."""
        rows = _parse(chunk.payload, self.partition.index)
        if rows is None or not is_chunk(rows, record, chunk.number):
            return f"chunk {chunk.number} must hold the rows that were offered, and whole"
        try:
            self.partition.write_block(chunk_name(record.hand_over, chunk.number), rows)
        except OSError as error:
            return f"chunk {chunk.number} cannot be written: {error.strerror}"
        return ""

    def _chunk(self, record: Giving, number: int) -> Envelope:
        samples = np.array(chunk_of(record.samples, record.chunk_size, number))
        payload = octets_of(self.partition.rows(samples))
        checksum = chunk_checksum(record.hand_over, number, payload)
        return self._from_here(record.receiver, Chunk(record.hand_over, number, payload, checksum))

    def _send(self, reaction: Reaction[Giving] | Reaction[Taking]) -> list[Envelope]:
        return [self._from_here(to, message) for to, message in reaction.send]

    def _from_here(self, to: str, message: Message) -> Envelope:
        return Envelope(self.partition.name, to, message)


def _free(index: Index) -> set[int]:
    """Return the samples that are listed, and in no hand-over yet."""
    offered = (r.samples for r in index.givings.values() if r.phase == "offered")
    return set(index.samples.tolist()).difference(*offered)


def _held(index: Index) -> set[int]:
    """Return the samples that are listed or about to be."""
    coming = (r.samples for r in index.takings.values() if not r.final)
    return set(index.samples.tolist()).union(*coming)


def _counts(record: Taking | None, chunk: Chunk) -> bool:
    return record is not None and chunk.number in record.chunks


def _parse(payload: bytes | memoryview, index: Index) -> Rows | None:
    dtype = index.layout.row
    return np.frombuffer(payload, dtype) if len(payload) % dtype.itemsize == 0 else None
