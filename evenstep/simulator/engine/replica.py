"""A replica: a worker's model, which computes gradients at whatever parameters it is given."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from evenstep.core import Ints
from evenstep.simulator.workloads.workload import Evaluation, Workload, gradients


def use_threads(number: int) -> None:
    """Let so many threads compute a gradient: several cost more than they gain on small nets."""
    torch.set_num_threads(number)


class Replica:
    """A model of a workload, whose parameters come from a server."""

    def __init__(self, workload: Workload, seed: int) -> None:
        self._workload = workload
        self._model = workload.make_model(seed)
        self.parameters: list[torch.Tensor] = list(self._model.parameters())
        """As they are at the beginning, for the server to start with."""
        self.buffers = [b for b in self._model.buffers() if b.is_floating_point()]

    def train_on(self, workload: Workload) -> None:
        """Go on with other samples of the same workload."""
        self._workload = workload

    def gradients(self, pulled: Sequence[torch.Tensor], samples: Ints) -> list[torch.Tensor]:
        """Return the gradient of the mean loss over samples, then what buffers have lost."""
        self._take(pulled)
        found = gradients(self._workload, self._model, samples)
        before = pulled[len(self.parameters) :]
        return found + [old - new for old, new in zip(before, self.buffers, strict=True)]

    def evaluate(self, pulled: Sequence[torch.Tensor]) -> Evaluation:
        """Return how good the model is with these parameters and buffers."""
        self._take(pulled)
        return self._workload.evaluate(self._model)

    def _take(self, pulled: Sequence[torch.Tensor]) -> None:
        num_parameters = len(self.parameters)
        for parameter, tensor in zip(self.parameters, pulled[:num_parameters], strict=True):
            # No copy: nobody changes a parameter in place here.
            parameter.data = tensor
        for buffer, tensor in zip(self.buffers, pulled[num_parameters:], strict=True):
            buffer.copy_(tensor)
