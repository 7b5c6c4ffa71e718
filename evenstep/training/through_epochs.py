"""Going through epochs: what all loaders have in common, whatever they make of the samples."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from evenstep.training.epochs import Epochs


class ThroughEpochs:
    """Goes through epochs, and can be told which, and where to go on."""

    epochs: Epochs

    def __len__(self) -> int:
        """The number of iterations of an epoch."""
        return len(self.epochs)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch; without it, epochs count themselves."""
        self.epochs.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return where in which epoch this is, for a checkpoint."""
        return self.epochs.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a checkpoint was made, also with another number of workers."""
        self.epochs.load_state_dict(state)
