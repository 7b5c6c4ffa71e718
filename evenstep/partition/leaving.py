"""Leaving: partitions of those who go are shared out, and hand-overs with those who are lost end.

Who leaves in good order gives everything away, by hand-overs like any other. A partition whose disk
is lost says nothing any more; what it would have to say, for an open hand-over to end, others say.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import ArrayLike

from evenstep.core.arrays import Ints, as_ints
from evenstep.core.limits import Limits
from evenstep.errors import InvalidSetting
from evenstep.partition.messages import Adopted, Given, Message, Refused, Withdrawn
from evenstep.partition.transfers import target_sizes


def targets_when(
    leaving: Collection[str],
    names: Sequence[str],
    sizes: ArrayLike,
    batch_sizes: ArrayLike | None,
    minimum: int = 1,
) -> Ints:
    """Return partition sizes that follow the batch sizes of those who stay; who leaves has nothing.

    Without batch sizes they follow the partition sizes, which moves nothing between those who stay,
    and nothing to a partition that is empty, as that of one who left before.

    >>> targets_when({"c"}, ["a", "b", "c"], [100, 200, 60], None)
    array([120, 240,   0])
    >>> targets_when({"c"}, ["a", "b", "c"], [100, 0, 60], None)
    array([160,   0,   0])
    >>> targets_when({"c"}, ["a", "b", "c"], [100, 200, 60], [1, 1, 5])
    array([180, 180,   0])
    """
    sizes = as_ints(sizes)
    wanted = sizes if batch_sizes is None else as_ints(batch_sizes)
    if unknown := sorted(set(leaving).difference(names)):
        raise InvalidSetting(f"who leaves must be one of {', '.join(names)}, got {unknown[0]}")
    stays = np.array([name not in leaving for name in names], dtype=bool)
    if not stays.any():
        raise InvalidSetting(f"somebody must stay, got {', '.join(names)} as leaving")
    if len(wanted) != len(sizes):
        raise InvalidSetting(f"batch sizes must be those of {len(sizes)} workers, got {wanted}")
    targets = np.zeros_like(sizes)
    least = minimum if batch_sizes is not None else np.minimum(minimum, sizes[stays])
    limits = Limits.of(int(stays.sum()), least)
    targets[stays] = target_sizes(int(sizes.sum()), wanted[stays], limits)
    return targets


def require_lost(lost: Collection[str], names: Collection[str]) -> None:
    """Raise InvalidSetting where one of those who are here is said to be lost.

    What it has would be doubled, as others take over what it was handing out.
    """
    if here := sorted(set(lost).intersection(names)):
        raise InvalidSetting(f"who is lost must not be here, got {here[0]}, which is")


def last_word(hand_over: str, phase: str) -> Message:
    """Return what a lost partition would have to say to the other party, whose phase this is.

    A receiver that has everything staged takes it over: wherever the samples were, they are nowhere
    else any more. One that lacks chunks drops what it has. A giver keeps what it has only offered;
    what it gave to one that is lost is lost with it.

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
