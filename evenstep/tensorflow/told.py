"""What all balancers of TensorFlow tell about their loop."""

from __future__ import annotations

from typing import Any

from evenstep.tensorflow.buffers import average_buffers
from evenstep.training import told


class Told(told.Told):
    """A balancer that has a loop, and a model with buffers."""

    def average_buffers(self, model: Any) -> None:
        """Average BatchNorm's running statistics over all workers, for an evaluation.

        All workers must call it.
        """
        average_buffers(model, self._loop)
