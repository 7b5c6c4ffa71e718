"""The messages of a hand-over; `protocol.py` shows their order."""

from __future__ import annotations

from dataclasses import dataclass

MANAGER = "@manager"
"""The address of the manager; partitions are addressed by their names, which have no @."""


@dataclass(frozen=True)
class Begin:
    """Manager to giver: hand these samples to the receiver, but do not let go of them yet."""

    hand_over: str
    receiver: str
    samples: tuple[int, ...]
    chunk_size: int
    """Samples per chunk; the last one may be smaller."""


@dataclass(frozen=True)
class Commit:
    """Manager to giver: let go of the samples now, as the receiver has them."""

    hand_over: str


@dataclass(frozen=True)
class Cancel:
    """Manager to giver: keep the samples, unless they were given already."""

    hand_over: str
    reason: str


@dataclass(frozen=True)
class Ready:
    """Giver to manager: the receiver has everything; waiting for Commit."""

    hand_over: str


@dataclass(frozen=True)
class Done:
    """Giver to manager: the samples are in the receiver's index."""

    hand_over: str


@dataclass(frozen=True)
class Failed:
    """Giver to manager: everything is as it was before, and why."""

    hand_over: str
    reason: str


@dataclass(frozen=True)
class Offer:
    """Giver to receiver: these samples are for you; which chunks do you lack?"""

    hand_over: str
    samples: tuple[int, ...]
    chunk_size: int
    layout: str
    """What a row is made of; both partitions must have the same."""


@dataclass(frozen=True)
class Chunk:
    """Giver to receiver: the rows of a chunk, and the checksum over them."""

    hand_over: str
    number: int
    payload: bytes | memoryview
    checksum: str


@dataclass(frozen=True)
class Given:
    """Giver to receiver: the samples are yours, for good."""

    hand_over: str


@dataclass(frozen=True)
class Withdrawn:
    """Giver to receiver: the samples stay where they are, for good."""

    hand_over: str
    reason: str


@dataclass(frozen=True)
class Wanted:
    """Receiver to giver: send these chunks."""

    hand_over: str
    numbers: tuple[int, ...]


@dataclass(frozen=True)
class Staged:
    """Receiver to giver: all chunks are on disk, and stay there until Given or Withdrawn."""

    hand_over: str


@dataclass(frozen=True)
class Refused:
    """Receiver to giver: I do not take them, for good."""

    hand_over: str
    reason: str


@dataclass(frozen=True)
class Adopted:
    """Receiver to giver: the samples are in my index."""

    hand_over: str


ToGiver = Begin | Commit | Cancel | Wanted | Staged | Refused | Adopted
ToReceiver = Offer | Chunk | Given | Withdrawn
ToManager = Ready | Done | Failed
Message = ToGiver | ToReceiver | ToManager


@dataclass(frozen=True)
class Envelope:
    """A message with its sender and its receiver."""

    sender: str
    to: str
    message: Message
