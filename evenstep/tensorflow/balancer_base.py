"""The base class of TensorFlow's balancers: averages BatchNorm statistics over all workers.

Each worker has statistics of its own batches; training does not wait for their average.
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
    """Set the buffers to their mean over all workers, weighted by the last batch of each.

    All workers must call it. It waits for all of them, which does not count as work.
    """
    buffers = [v for v in model.non_trainable_variables if "float" in str(v.dtype)]
    if not buffers:
        return
    with loop.away():
        parts = [buffer.numpy().astype(np.float64) for buffer in buffers]
        own = np.concatenate([part.ravel() for part in parts])
        # The buffers of a worker without samples may be NaN, and are left out.
        weighted = own * loop.weight if loop.samples else np.zeros_like(own)
        mean = loop.collective.everybody(weighted).sum(axis=0)
    ends = np.cumsum([part.size for part in parts])[:-1]
    for buffer, part, value in zip(buffers, parts, np.split(mean, ends), strict=True):
        buffer.assign(value.reshape(part.shape))
