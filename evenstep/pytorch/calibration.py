"""Calibration: times the forward and backward passes of one worker, without the others.

A sharded model gathers its parameters layer by layer, so a pass waits for the slowest worker in
every layer, and t cannot be measured in it. A replica that is not sharded waits for no other
worker. It is timed at a few sizes, and a line ``t = a + b x`` is fitted to the medians.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from typing import Any

import numpy as np
import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import Dataset

from evenstep.core import Floats, Ints, Limits, as_floats, makespan, require_whole, split_affine
from evenstep.errors import CalibrationFailed, InvalidSetting
from evenstep.measure.timer import Clock
from evenstep.pytorch.checks import is_fully_sharded
from evenstep.pytorch.fetching import Packing, Samples, count_samples, seeded_randomness
from evenstep.training.collective import Collective, gather_values

_LEAST_SLOPE = 0.05
"""A slope is at least this part of t / x, and at most t / x: overhead cannot be negative."""


@dataclass(frozen=True)
class FittedLine:
    """``t = a + b x``, in seconds."""

    offset: float
    slope: float


@dataclass(frozen=True)
class UnshardedReplica:
    """The model to time, which is not sharded, with its loss and data set."""

    make_model: Callable[[], torch.nn.Module]
    loss_of: Callable[[torch.nn.Module, Any], torch.Tensor]
    dataset: Dataset[Any]
    collate_fn: Callable[[list[Any]], Any] | None = None
    clock: Clock = time.perf_counter

    def measure(self, sizes: Sequence[int], repeats: int, device: torch.device) -> FittedLine:
        """Return the line through the median times at these sizes.

        It keeps the random state of the training, and frees its memory.
        """
        with _own_randomness(device):
            times = self._time_all(sorted(set(sizes), reverse=True), repeats, device)
        _give_back_memory(device)
        return fit_line(list(times), [float(np.median(taken)) for taken in times.values()])

    def _time_all(
        self, sizes: Sequence[int], repeats: int, device: torch.device
    ) -> dict[int, list[float]]:
        model = self._make()
        batches = {size: self._batch(size) for size in sizes}
        for batch in batches.values():
            self._time(model, batch, device)  # allocates and compiles: not counted
        times: dict[int, list[float]] = {size: [] for size in sizes}
        # In rounds, so that a slow moment affects all sizes.
        for _ in range(repeats):
            for size, batch in batches.items():
                times[size].append(self._time(model, batch, device))
        return times

    def _make(self) -> torch.nn.Module:
        model = self.make_model()
        if not isinstance(model, torch.nn.Module):
            raise InvalidSetting(
                f"make_model must return a torch.nn.Module, got {type(model).__name__}"
            )
        for module in model.modules():
            if is_fully_sharded(module) or isinstance(module, DistributedDataParallel):
                raise InvalidSetting(
                    "make_model must return a model that waits for no other worker, without "
                    f"fully_shard and DistributedDataParallel, got {type(module).__name__}"
                )
        return model

    def _batch(self, size: int) -> Any:
        count = count_samples(self.dataset)
        if count == 0:
            raise InvalidSetting("the dataset to calibrate with must have samples, got none")
        keys = [(0, i % count) for i in range(size)]
        return Packing(self.collate_fn).collate(Samples(self.dataset, None).__getitems__(keys))

    def _time(self, model: torch.nn.Module, batch: Any, device: torch.device) -> float:
        model.zero_grad(set_to_none=True)
        _synchronise(device)
        start = self.clock()
        self.loss_of(model, batch).backward()
        _synchronise(device)
        return self.clock() - start


def fit_line(sizes: Sequence[int], times: Sequence[float]) -> FittedLine:
    """Return the least squares line with a positive slope and an offset >= 0.

    With one size it goes through the origin, as the overhead is unknown.

    >>> fit_line([2, 4, 6], [5.0, 9.0, 13.0])
    FittedLine(offset=1.0, slope=2.0)
    >>> fit_line([4], [8.0])
    FittedLine(offset=0.0, slope=2.0)
    """
    x, t = as_floats(sizes), as_floats(times)
    middle, level = float(x.mean()), float(t.mean())
    spread = float(np.sum((x - middle) ** 2))
    slope = float(np.sum((x - middle) * (t - level))) / spread if spread else np.inf
    slope = float(np.clip(slope, _LEAST_SLOPE * level / middle, level / middle))
    return FittedLine(level - slope * middle, slope)


def gather_lines(
    measure: Callable[[], FittedLine], collective: Collective
) -> tuple[FittedLine, ...]:
    """Measure on all workers and return all lines; if one worker fails, all of them raise."""
    mine: tuple[float, float] | str
    failure: Exception | None = None
    try:
        mine = astuple(measure())
    except Exception as error:
        mine, failure = f"{type(error).__name__}: {error}", error
    everybody = gather_values(collective, mine)
    if failure is not None:
        raise failure
    for worker, theirs in enumerate(everybody):
        if isinstance(theirs, str):
            raise CalibrationFailed(
                f"the calibration must succeed on all workers, got {theirs} on worker {worker}"
            )
    return tuple(FittedLine(*line) for line in everybody)


def split_by_lines(total: int, lines: Sequence[FittedLine], limits: Limits) -> Ints:
    """Return the sizes with which all workers finish together."""
    return split_affine(total, *_columns(lines), limits)


def saved_by(sizes: Ints, even: Ints, lines: Sequence[FittedLine]) -> float:
    """Return the fraction of the iteration time that the sizes save over even ones."""
    return 1 - makespan(sizes, *_columns(lines)) / makespan(even, *_columns(lines))


def sizes_around(batch_size: int, min_trainable: int, maximum: int | None) -> list[int]:
    """Return the sizes to time for a worker with batches of about this size.

    >>> sizes_around(32, min_trainable=1, maximum=40)
    [16, 32, 40]
    """
    largest = max(min_trainable + 1, -(-3 * batch_size // 2))
    if maximum is not None:
        largest = max(min_trainable, min(largest, maximum))
    wanted = (batch_size // 2, batch_size, largest)
    return sorted({min(max(size, min_trainable), largest) for size in wanted})


def check_sizes_to_time(sizes: Sequence[int], min_trainable: int) -> None:
    """Raise InvalidSetting unless the model can be trained on batches of these sizes."""
    if not len(sizes):
        raise InvalidSetting("sizes to calibrate at must be given or left out, got none")
    for size in sizes:
        require_whole("a size to calibrate at", size, least=min_trainable)


def _columns(lines: Sequence[FittedLine]) -> tuple[Floats, Floats]:
    """Return the offsets and the slopes of all workers."""
    return as_floats([line.offset for line in lines]), as_floats([line.slope for line in lines])


@contextmanager
def _own_randomness(device: torch.device) -> Iterator[None]:
    forked = [device] if device.type == "cuda" else []
    with seeded_randomness(0), torch.random.fork_rng(devices=forked):
        yield


def _synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _give_back_memory(device: torch.device) -> None:
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
