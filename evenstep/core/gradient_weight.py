"""The gradient weight turns a mean over workers into the mean over samples (section 3.4)."""

from __future__ import annotations


def gradient_weight(batch_size: int, total: int, num_workers: int = 1) -> float:
    """Return the factor of a worker's mean gradient; 0 where no worker has samples.

    Before gradients are summed over the workers it is ``x_i / X``; before a mean over `num_workers`
    workers it is ``n x_i / X``, as the paper has it.

    >>> gradient_weight(24, total=64), gradient_weight(24, total=64, num_workers=2)
    (0.375, 0.75)
    """
    return num_workers * batch_size / max(total, 1)
