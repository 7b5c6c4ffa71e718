"""A replica: a worker's model, which computes gradients at given parameters."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from evenstep.core import Ints
from evenstep.simulator.workloads.workload import Evaluation, Workload, gradients


def use_threads(number: int) -> None:
    """Set the number of threads per gradient: on small nets several cost more than they gain."""
    torch.set_num_threads(number)


class Replica:
    """The model of a workload, with parameters pulled from a server."""

    def __init__(self, workload: Workload, seed: int) -> None:
        self._workload = workload
        self._model = workload.make_model(seed)
        self.parameters: list[torch.Tensor] = list(self._model.parameters())
        """The initial parameters of the server."""
        self.buffers = [b for b in self._model.buffers() if b.is_floating_point()]

    def train_on(self, workload: Workload) -> None:
        """Continue with other samples of the same workload."""
        self._workload = workload

    def gradients(self, pulled: Sequence[torch.Tensor], samples: Ints) -> list[torch.Tensor]:
        """Return the gradient of the mean loss over samples, then the decrease of each buffer."""
        self._take(pulled)
        found = gradients(self._workload, self._model, samples)
        before = pulled[len(self.parameters) :]
        return found + [old - new for old, new in zip(before, self.buffers, strict=True)]

    def evaluate(self, pulled: Sequence[torch.Tensor]) -> Evaluation:
        """Evaluate the model with these parameters and buffers."""
        self._take(pulled)
        return self._workload.evaluate(self._model)

    def _take(self, pulled: Sequence[torch.Tensor]) -> None:
        num_parameters = len(self.parameters)
        for parameter, tensor in zip(self.parameters, pulled[:num_parameters], strict=True):
            # No copy: parameters are never changed in place.
            parameter.data = tensor
        for buffer, tensor in zip(self.buffers, pulled[num_parameters:], strict=True):
            buffer.copy_(tensor)
