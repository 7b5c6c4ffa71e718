"""The carrier: an optimizer for the servers that leaves the workers' rows as they were summed.

A server hands every key to its optimizer. Those from `FIRST_ROWS` on are no parameters but rows
that workers tell each other, and keep the sum of what was pushed last. Servers import this module.
"""

from __future__ import annotations

from typing import Any

import mxnet as mx

FIRST_ROWS = 100_000
"""The first key of rows; parameters have keys below it. MXNet multiplies a key by 9973 and keeps
the result in 32 bits, so that keys must stay below 215,000."""


class Carrier(mx.optimizer.Optimizer):  # type: ignore[misc]  # MXNet is not annotated
    """Updates parameters by the optimizer of a user, and takes rows as they are.

    The parameters of the training have keys from `first` on, and are 0, 1, ... to its optimizer.
    """

    def __init__(self, optimizer: Any, first: int) -> None:
        super().__init__(multi_precision=optimizer.multi_precision)
        self.optimizer = optimizer
        self.first = first

    def create_state_multi_precision(self, index: int, weight: Any) -> Any:
        """Return the state of a key; rows have none."""
        if index >= FIRST_ROWS:
            return None
        return self.optimizer.create_state_multi_precision(index - self.first, weight)

    def update_multi_precision(self, index: int, weight: Any, grad: Any, state: Any) -> None:
        """Update what is stored under a key by the sum of what was pushed."""
        if index >= FIRST_ROWS:
            weight[:] = grad
        else:
            self.optimizer.update_multi_precision(index - self.first, weight, grad, state)
