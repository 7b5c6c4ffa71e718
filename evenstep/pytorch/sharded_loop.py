"""Makes the loop of a sharded model, whose workers exchange no reports and measure no times.

Its plans are those of fixed shares, or of a calibration, and hold until the next calibration.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from evenstep.core import (
    UNLIMITED,
    Ints,
    Limits,
    Plan,
    SavedState,
    as_array,
    as_floats,
    even_sizes,
    require_whole,
    split_proportional,
)
from evenstep.errors import DivergedPlans
from evenstep.measure.timer import HostTimer
from evenstep.policies import Even, Policy, Static
from evenstep.pytorch.calibration import FittedLine, saved_by, split_by_lines
from evenstep.pytorch.checks import check_sharded_model, mesh_of
from evenstep.pytorch.collective import ProcessGroupCollective, collective_of, store_of_group
from evenstep.pytorch.compatibility import has_batch_norm
from evenstep.pytorch.loss_check import check_loss
from evenstep.training.checkpoint import GIVEN_TOTAL, Remembered, check_total
from evenstep.training.collective import Collective, require_agreement
from evenstep.training.heartbeat import make_heartbeat
from evenstep.training.iteration import FinishedIteration, Iteration
from evenstep.training.loop import Loop
from evenstep.training.report_rows import Row, digest
from evenstep.training.reporter import Reporter
from evenstep.training.settings import Settings, SizeOptions, check_names, check_sizes

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


def make_sharded_loop(
    model: torch.nn.Module,
    total: int,
    loss: str | None,
    granularity: int,
    options: SizeOptions,
) -> tuple[Loop, CalibratedPlans, ProcessGroupCollective, DeviceMesh]:
    """Return the loop of this worker, its plans, and its collective; all workers must call it."""
    check_names(options, SizeOptions.__optional_keys__)
    check_sharded_model(model)
    mesh = mesh_of(model)
    collective = collective_of(mesh.get_group())
    min_trainable = 2 if has_batch_norm(model) else 1
    minimum = options.get("minimum")
    settings = Settings(
        total, "static", options.get("shares"), None, None,
        min_trainable if minimum is None else minimum, options.get("maximum"), False, granularity,
        "advise", 0,
    )  # fmt: skip
    # Before all other checks: a worker that raised alone would leave the others waiting.
    require_agreement({**settings.agreed(), "loss": loss}, collective)
    check_loss(loss)
    check_sizes(total, settings.minimum, collective.num_workers)
    plans = CalibratedPlans(settings, collective.num_workers)
    timer = HostTimer()
    loop = Loop(
        collective, settings, plans, timer, Reporter(None, timer, 0, reads=False),
        min_trainable=min_trainable,
        summary=options.get("summary", True), fetches_ahead=True,
    )  # fmt: skip
    loop.heartbeat = make_heartbeat(
        collective, plans.workers, store_of_group, loop.progress, loop.note, None
    )
    collective.explained = loop.explained
    return loop, plans, collective, mesh


class CalibratedPlans:
    """Provides the plan of the next iteration, which is the same on all workers."""

    first = 0
    slot_width = 0
    straggler = None

    def __init__(self, settings: Settings, num_workers: int) -> None:
        self.workers = tuple(map(str, range(num_workers)))
        self._total = self._given_total = settings.total
        self._limits = _limits(settings, num_workers)
        self.even = even_sizes(settings.total, self._limits)
        """The sizes of plain BSP."""
        self.policy: Policy[Any] = Even()
        sizes = self.even
        if settings.shares is not None:
            static = self.policy = Static(tuple(float(share) for share in settings.shares))
            static.init(num_workers)
            sizes = split_proportional(self._total, as_floats(static.shares), self._limits)
        self.plan = Plan(0, 0, sizes, reason="start")
        self.lines: tuple[FittedLine, ...] = ()
        """The fitted line of each worker by the last calibration; empty without one."""

    def sizes_by(self, lines: Sequence[FittedLine]) -> Ints:
        """Return the sizes with which all workers finish together."""
        return split_by_lines(self._total, lines, self._limits)

    def adopt(self, sizes: Ints, lines: tuple[FittedLine, ...], upcoming: int) -> None:
        """Use these sizes from an iteration on; unchanged sizes keep the number of the plan."""
        self.lines = lines
        if not np.array_equal(sizes, self.plan.sizes):
            self.plan = Plan(self.plan.number + 1, upcoming, sizes, reason="calibration")

    def slot(self) -> Row:
        """Return nothing: no rows are exchanged."""
        return np.zeros(0, dtype=np.float32)

    def take(self, rows: NDArray[np.float32], done: FinishedIteration) -> None:
        """Learn nothing: no rows are exchanged."""

    def change_total(self, total: int, iteration: int) -> None:
        """Plan for another total from an iteration on, by the last lines or in proportion."""
        self.even = even_sizes(total, self._limits)
        self._total = total
        sizes = (
            self.sizes_by(self.lines)
            if self.lines
            else split_proportional(total, np.maximum(self.plan.sizes, 1e-3), self._limits)
        )
        self.plan = Plan(self.plan.number + 1, iteration, sizes, reason="total changed")

    def meet(self) -> None:
        """Do nothing: only a calibration or another total changes plans."""

    def state(self, iteration: int) -> dict[str, Any]:
        """Return the plan and the lines, for a checkpoint."""
        return {
            "iteration": iteration,
            "number": self.plan.number,
            "sizes": self.plan.sizes.tolist(),
            "lines": [[line.offset, line.slope] for line in self.lines],
            "total": self._total,
            GIVEN_TOTAL: self._given_total,
        }

    def restore(self, state: Mapping[str, Any], worker: int) -> Remembered:
        """Restore the plan of a checkpoint of the same number of workers."""
        saved = SavedState("a balancer", state, "iteration", "number", "sizes", "lines", "total")
        num_workers, total = len(self.workers), saved.whole("total", least=1, most=UNLIMITED)
        if GIVEN_TOTAL not in saved or saved[GIVEN_TOTAL] != self._given_total:
            check_total(total, self._total)
        sizes = saved.wholes("sizes", num_workers)
        if sum(sizes.tolist()) != total:
            raise saved.wrong("sizes", f"numbers that add up to {total}")
        if not self._limits.allow(sizes, total):
            sizes = split_proportional(total, np.maximum(sizes, 1e-3), self._limits)
        lines = tuple(_line(saved, line) for line in saved.items("lines"))
        if len(lines) not in (0, num_workers):
            raise saved.wrong("lines", f"{num_workers} of them, or none")
        number, iteration = (saved.whole(name, most=UNLIMITED) for name in ("number", "iteration"))
        self.even = even_sizes(total, self._limits)
        self._total, self.lines = total, lines
        self.plan = Plan(number, iteration, sizes, reason="restored")
        return Remembered()

    def note(self, iteration: int, text: str) -> None:
        """Do nothing: there is no run log."""

    def summary(self) -> str:
        """Return one line on the sizes, and on the time that they save by the calibration."""
        sizes = "/".join(map(str, self.plan.sizes.tolist()))
        if not self.lines:
            return f"evenstep: batch sizes {sizes}, not calibrated"
        saved = saved_by(self.plan.sizes, self.even, self.lines)
        return (
            f"evenstep: batch sizes {sizes}; by the calibration, forward and backward passes take "
            f"about {saved:.0%} less time than with even sizes"
        )

    def close(self, iteration: int) -> None:
        """Do nothing: there is no run log."""


def _limits(settings: Settings, num_workers: int) -> Limits:
    require_whole("granularity", settings.granularity)
    maximum = UNLIMITED
    if settings.maximum is not None:
        require_whole("maximum", settings.maximum)
        assert isinstance(settings.maximum, int)
        maximum = settings.maximum
    return Limits.of(num_workers, settings.minimum, maximum, settings.granularity)


def _line(saved: SavedState, values: object) -> FittedLine:
    """Return the line of a worker in a checkpoint."""
    line = as_array(values)
    if line is None or line.dtype.kind not in "if" or line.shape != (2,):
        raise saved.wrong("lines", "pairs of numbers")
    if not np.isfinite(line).all():
        raise saved.wrong("lines", "pairs of finite numbers")
    return FittedLine(*line.tolist())


class Trail:
    """A hash of all iterations, for workers whose gradient exchange carries no digests."""

    def __init__(self) -> None:
        self._hash = 0

    def add(self, iteration: Iteration) -> None:
        """Add an iteration that was trained on."""
        digested = digest(iteration.plan, iteration.position).to_bytes(4, "little")
        self._hash = zlib.crc32(digested, self._hash)

    def check(self, collective: Collective) -> None:
        """Raise DivergedPlans, on all workers, unless they all trained on the same iterations."""
        hashes = collective.everybody(np.array([self._hash], dtype=np.float64))[:, 0].tolist()
        for worker, theirs in enumerate(hashes):
            if theirs != hashes[0]:
                raise DivergedPlans(
                    "all workers must use the same plan for the same samples, but worker "
                    f"{worker} and worker 0 did not; do all workers go through the same epochs, "
                    "with the same versions of evenstep and numpy?"
                )
