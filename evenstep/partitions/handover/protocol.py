"""The hand-over protocol: samples move between two partitions, and none is lost or doubled.

    manager          giver                       receiver
       | Begin         |                            |
       |-------------> | offered                    |
       |               |--- Offer ----------------> | staging
       |               | <------------ Wanted ------|
       |               |--- Chunk ----------------> |   (as often as need be)
       |               | <------------ Staged ------| staged
       | <---- Ready --|                            |
       | Commit -----> | given     <- the moment    |
       |               |--- Given ----------------> | adopted
       |               | <------------ Adopted -----|
       | <----- Done --| settled                    |

Each party keeps one record per hand-over, and the phase of the record (the words next to the lines
above) is the whole state. A reaction says which record must be durable *before* its messages are
sent; after a crash a party has its records, and `retry` makes the next message from each. So
messages may be lost, repeated and overtaken, and any party may crash anywhere: sending again is the
only remedy, and never wrong.

Where a sample is. One write decides: that in which the giver's record becomes `given` and, in the
same write, the samples leave its index. A sample is in the index of a partition if that lists it,
or if it is staged there and the giver's record of the hand-over says `given`. By this definition
every sample is in exactly one index at every moment, although two disks take part. The receiver
writes `adopted`, and lists the samples, when Given arrives; it promised with Staged to keep them
until then.

Who may back out. The receiver until it said Staged, by Refused; the giver until it wrote `given`,
on its own (damaged rows), for a refusal, or when the manager cancels. Then nothing has changed: no
sample left an index, staged chunks are deleted, and the manager gets the reason. A giver that once
withdrew never gives, and a receiver that once refused never adopts: those records are permanent.

The manager may lose its memory: it decides nothing that the giver's record does not. A hand-over
that it does not know, it cancels.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from evenstep.errors import InvalidSetting

MANAGER = "@manager"
"""The address of the manager; partitions are addressed by their names, which have no @."""

Record = TypeVar("Record")


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
    """The fields of a row; both partitions must have the same."""


@dataclass(frozen=True)
class Chunk:
    """Giver to receiver: the rows of a chunk, and the checksum over them."""

    hand_over: str
    number: int
    payload: bytes | memoryview
    checksum: str


@dataclass(frozen=True)
class Given:
    """Giver to receiver: the samples are yours; final."""

    hand_over: str


@dataclass(frozen=True)
class Withdrawn:
    """Giver to receiver: the samples stay where they are; final."""

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
    """Receiver to giver: the samples are refused; final."""

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


@dataclass(frozen=True)
class Reaction(Generic[Record]):
    """The reaction of a party to a message: write first, then send."""

    record: Record | None = None
    """The new record, to be durable before anything is sent; None where nothing changes."""
    send: tuple[tuple[str, Message], ...] = ()
    """Receivers and messages."""
    chunks: tuple[int, ...] = ()
    """Numbers of the chunks that the giver shall read and send to the receiver."""


def check_name(what: str, name: str) -> None:
    """Raise InvalidSetting unless a name can be a file's: hand-overs and partitions have such ones.

    >>> check_name("hand-over", "../../etc")
    Traceback (most recent call last):
    evenstep.errors.InvalidSetting: a name of a hand-over must be 1 to 100 letters, digits, ...
    """
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", name, re.ASCII):
        raise InvalidSetting(
            f"a name of a {what} must be 1 to 100 letters, digits, '.', '_' or '-', "
            f"and begin with a letter or digit, got {name!r}"
        )


def wrong_terms(hand_over: str, samples: Sequence[int], chunk_size: int) -> str:
    """Return what is wrong with the terms of a hand-over, or an empty text."""
    try:
        check_name("hand-over", hand_over)
    except InvalidSetting as error:
        return str(error)
    if not samples:
        return "a hand-over must have samples, got none"
    if chunk_size < 1:
        return f"chunk size must be >= 1, got {chunk_size}"
    if len(set(samples)) < len(samples):
        return "each sample of a hand-over must be named once"
    return ""


def num_chunks(num_samples: int, chunk_size: int) -> int:
    """Return how many chunks a hand-over has.

    >>> num_chunks(10, 4)
    3
    """
    return -(-num_samples // chunk_size)


def chunk_of(samples: Sequence[int], chunk_size: int, number: int) -> Sequence[int]:
    """Return the samples of a chunk.

    >>> chunk_of((7, 8, 9), 2, 1)
    (9,)
    """
    return samples[number * chunk_size : (number + 1) * chunk_size]


def chunk_checksum(hand_over: str, number: int, payload: bytes | memoryview) -> str:
    """Return the checksum of a chunk: SHA-256 over the hand-over, the number and the rows.

    >>> chunk_checksum("m1-0", 0, b"rows")[:8]
    'dd38294b'
    """
    digest = hashlib.sha256(f"{hand_over} {number}\n".encode())
    digest.update(payload)
    return digest.hexdigest()
