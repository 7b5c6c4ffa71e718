"""Judges the losses that a script trains with, before gradients are weighed."""

from __future__ import annotations

import torch

from evenstep.pytorch.loss_check import LossWatch
from evenstep.pytorch.loss_kind import Verdict, verdict_of
from evenstep.run.passes import WatchedPass


class Losses:
    """Collects verdicts on the losses of all backward passes, from `watch` to `close`."""

    def __init__(self) -> None:
        self._of: WatchedPass | None = None
        """The pass over a loader whose batches the losses are of."""
        self._verdicts: list[Verdict] = []
        self._watch: LossWatch | None = None

    def watch(self, one: WatchedPass) -> None:
        """Judge losses of batches from this pass over a loader."""
        self._of = one
        if self._watch is None:
            self._verdicts = []
            self._watch = LossWatch(self._see)

    def close(self) -> list[Verdict]:
        """Stop, and return the verdicts."""
        if self._watch is not None:
            self._watch.close()
        self._of = self._watch = None
        return self._verdicts

    def _see(self, loss: torch.Tensor) -> None:
        if self._of is not None:
            self._verdicts.append(verdict_of(loss, self._of.samples))
