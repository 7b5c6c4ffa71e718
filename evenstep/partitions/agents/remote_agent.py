"""An agent in another process, as the manager calls it."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from evenstep.core import Ints
from evenstep.errors import EvenstepError, ManagerUnreachable, Refused
from evenstep.manager.connection import ServiceConnection, Where
from evenstep.partitions.agents.thrift_messages import (
    AGENT,
    from_struct,
    seal,
    to_struct,
    types,
    unpack_samples,
    unseal,
)
from evenstep.partitions.handover.protocol import Envelope
from evenstep.partitions.handover.task import Holding, Task

TIMEOUT = 10.0
"""Seconds for an answer, at most."""
_COMPACTING = 3600.0
_ATTEMPTS = 5


class RemoteAgent:
    """Calls an agent; a lost connection is opened again with the next call."""

    def __init__(self, where: Where, timeout: float = TIMEOUT) -> None:
        self.address = where.address
        self._timeout = timeout
        self._where = where
        self._line: ServiceConnection | None = None
        self._addresses: Mapping[str, str] = {}

    def introduce(self, addresses: Mapping[str, str]) -> None:
        """Send the addresses of other agents, with the next call and after every new connection."""
        self._addresses = addresses
        self.close()

    def deliver(self, envelope: Envelope) -> None:
        """Hand in a message."""
        self._call("deliver", envelope=seal(to_struct(envelope)))

    def collect(self) -> list[Envelope]:
        """Return the messages for the manager."""
        found = unseal(self._call("collect"), types().Envelopes())
        return [from_struct(struct) for struct in found.envelopes or ()]

    def describe(self) -> Any:
        """Return the Partition of `agent.thrift` that the agent has."""
        return unseal(self._call("describe"), types().Partition())

    def begun(self, hand_over: str) -> Task:
        """Return an open hand-over of this giver as a task, to continue it."""
        begin = unseal(self._call("begun", hand_over=hand_over), types().Begin())
        giver = self.describe().name
        samples = unpack_samples(begin.samples)
        return Task(hand_over, giver, begin.receiver, samples, begin.chunk_size)

    def holding(self) -> Holding:
        """Return all samples of the partition, as of one moment."""
        attempt = 0
        while True:
            attempt += 1
            try:
                return self._holding()
            except Refused as error:
                if error.problem != "CHANGED" or attempt == _ATTEMPTS:
                    raise

    def compact(self) -> int:
        """Delete the rows of samples that have left, and return their bytes."""
        return int(self._call("compact", _COMPACTING))

    def close(self) -> None:
        line, self._line = self._line, None
        if line is not None:
            with contextlib.suppress(OSError):
                line.close()

    def _holding(self) -> Holding:
        about = self.describe()
        samples: list[Ints] = []
        labels: list[Ints] = []
        first = 0
        while first < about.length:
            page = unseal(
                self._call("samples", first=first, version=about.version), types().Samples()
            )
            samples.append(np.array(unpack_samples(page.samples), dtype=np.int64))
            if page.labels is not None:
                labels.append(np.array(unpack_samples(page.labels), dtype=np.int64))
            first += len(samples[-1])
            if not len(samples[-1]):
                raise EvenstepError(
                    f"{self.address}: must list {about.length} samples, got {first}"
                )
        nothing = np.zeros(0, dtype=np.int64)
        return Holding(
            about.name,
            np.concatenate([nothing, *samples]),
            np.concatenate([nothing, *labels]) if labels or not about.length else None,
            frozenset(one.hand_over for one in about.hand_overs),
        )

    def _call(self, name: str, timeout: float | None = None, **arguments: Any) -> Any:
        try:
            return self._connected().call(name, timeout or self._timeout, **arguments)
        except ManagerUnreachable:
            self.close()
            raise

    def _connected(self) -> ServiceConnection:
        if self._line is None:
            self._line = ServiceConnection(self._where, self._timeout, AGENT)
            try:
                self._introduce(self._line)
            except BaseException:
                self.close()
                raise
        return self._line

    def _introduce(self, line: ServiceConnection) -> None:
        # Agents keep addresses in memory only, so that a restarted agent needs them again.
        if self._addresses:
            peers = types().Peers(addresses=dict(self._addresses))
            line.call("introduce", self._timeout, peers=seal(peers))


def signature_of(partition: Any) -> tuple[Any, ...]:
    """Return a value that changes whenever the partition or one of its hand-overs does."""
    hand_overs = [(one.hand_over, one.phase, one.staged) for one in partition.hand_overs]
    return partition.version, hand_overs
