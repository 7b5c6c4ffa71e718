"""Notices gradients that are not finite: NaN or infinity on one worker spoils those of all workers.

A worker sums the gradients that it is about to send: the sum is finite if all of them are. Its mark
is 0 times that sum, so 0 or NaN. The marks travel with the reports, so that worker 0 knows which
worker was the first. The host does not wait for a device, and no exchange is added.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import numpy as np
import torch

from evenstep.core import Bools

MARK_WIDTH = 1
"""Numbers per worker."""

_log = logging.getLogger(__name__)


class FiniteCheck:
    """Marks the gradients of this worker, and warns once of the first that are not finite.

    `note` writes into the run log of worker 0.
    """

    def __init__(
        self, worker: int, workers: Sequence[str], note: Callable[[int, str], None]
    ) -> None:
        self._workers = tuple(workers)
        self._note = note
        self._warns = worker == 0
        self._marks: dict[torch.device, torch.Tensor] = {}
        """One per device that has gradients."""

    def add(self, gradients: torch.Tensor) -> None:
        """Mark gradients that go into the next exchange."""
        real = torch.view_as_real(gradients) if gradients.is_complex() else gradients
        # The sum of finite float16 may exceed float16.
        dtype = torch.float32 if real.element_size() < 4 else real.dtype
        mark = real.sum(dtype=dtype) * 0
        before = self._marks.get(mark.device)
        self._marks[mark.device] = mark if before is None else before + mark

    def write(self, cell: torch.Tensor) -> None:
        """Write the mark of this worker for an exchange, and begin the next one."""
        for mark in self._marks.values():
            cell += mark.to(cell.device, non_blocking=True)
        self._marks.clear()

    def see(self, iteration: int, is_finite: Bools) -> None:
        """Take the marks of all workers about an iteration."""
        if is_finite.all() or not self._warns:
            return
        self._warns = False
        names = ", ".join(self._workers[i] for i in np.flatnonzero(~is_finite))
        text = f"gradients of {names} were not finite (NaN or infinity) in iteration {iteration}"
        self._note(iteration, text)
        _log.warning(
            "%s, and so the sum over all workers was not; unless a GradScaler skips the iteration, "
            "parameters are not finite from then on (later cases are not reported)",
            text,
        )
