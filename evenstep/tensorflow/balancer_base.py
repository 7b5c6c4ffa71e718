"""What all balancers of TensorFlow tell about their loop.

Each worker has its own, from its own batches; nobody waits for them while training.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from evenstep.training import balancer_base
from evenstep.training.loop import Loop


class BalancerBase(balancer_base.BalancerBase):
    """A balancer that has a loop, and a model with buffers."""

    def average_buffers(self, model: Any) -> None:
        """Average BatchNorm's running statistics over all workers, for an evaluation.

        All workers must call it.
        """
        average_buffers(model, self._loop)


def average_buffers(model: Any, loop: Loop) -> None:
    """Give all workers the mean of their buffers, weighted by their batches of the iteration.

    All workers must call it. It waits for all of them, which does not count as work.
    """
    buffers = [v for v in model.non_trainable_variables if "float" in str(v.dtype)]
    if not buffers:
        return
    with loop.away():
        parts = [buffer.numpy().astype(np.float64) for buffer in buffers]
        own = np.concatenate([part.ravel() for part in parts])
        # Those of a worker without samples are left out, be they no numbers.
        weighted = own * loop.weight if loop.samples else np.zeros_like(own)
        mean = loop.collective.everybody(weighted).sum(axis=0)
    ends = np.cumsum([part.size for part in parts])[:-1]
    for buffer, part, value in zip(buffers, parts, np.split(mean, ends), strict=True):
        buffer.assign(value.reshape(part.shape))
