"""Counts of samples (tokens, pixels), by which batches are balanced instead of samples."""

from __future__ import annotations

import zlib
from collections.abc import Sized
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from evenstep.core import Ints
from evenstep.core.dealing import deal_by_counts
from evenstep.errors import InvalidSetting
from evenstep.policies import Policy, short_form
from evenstep.pytorch.fetching import Key


class Counts:
    """The count of every sample of a data set, such as its tokens."""

    def __init__(self, counts: ArrayLike) -> None:
        self._given = np.asarray(counts)
        whole = self._given.dtype.kind in "iu"
        self._counts: Ints = self._given.astype(np.int64) if whole else np.zeros(0, dtype=np.int64)

    def __repr__(self) -> str:
        """A short description, to compare counts between processes."""
        crc = zlib.crc32(np.ascontiguousarray(self._given).tobytes())
        return f"{self._given.dtype} of shape {self._given.shape} with checksum {crc:08x}"

    def check(self, dataset: Any) -> None:
        """Raise InvalidSetting unless every sample has one whole number > 0."""
        if self._given.ndim != 1 or self._given.dtype.kind not in "iu":
            raise InvalidSetting(
                "counts must be one whole number per sample, "
                f"got {self._given.dtype} of shape {self._given.shape}"
            )
        if not isinstance(dataset, Sized) or len(dataset) != len(self._counts):
            length = len(dataset) if isinstance(dataset, Sized) else "no length"
            raise InvalidSetting(
                f"counts must be one per sample of the dataset ({length}), got {len(self._counts)}"
            )
        if len(self._counts) and self._counts.min() < 1:
            first = int(np.argmax(self._counts < 1))
            raise InvalidSetting(
                f"counts must be >= 1, got {self._counts[first]} for sample {first}"
            )

    def deal(self, samples: Ints, sizes: Ints, minimum: int, worker: int) -> tuple[Ints, Ints]:
        """Return the samples of a slice that one worker gets, and how many each worker gets."""
        owners = deal_by_counts(self._counts[samples], sizes, minimum)
        return samples[owners == worker], np.bincount(owners, minlength=len(sizes))

    def size_of(self, keys: list[Key]) -> float:
        """Return the work of these samples, in average samples of the data set."""
        return float(self._counts[[index for _, index in keys]].sum() / self._counts.mean())


def check_policy(policy: Policy[Any]) -> None:
    """Raise InvalidSetting for a policy that needs batch sizes to be exactly as planned."""
    if "stepwise" in short_form(policy):
        raise InvalidSetting(
            "the policy must not be stepwise where the loader has counts: it judges a move when "
            f"batch sizes are exactly those planned, got {short_form(policy)!r}"
        )
