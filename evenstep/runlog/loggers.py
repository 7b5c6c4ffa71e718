"""Loggers: the figures of a run in TensorBoard, Weights & Biases and MLflow.

Each wraps an object that the user already has, so that nothing else has to be installed:

    TensorBoard(SummaryWriter())     torch.utils.tensorboard, or anything with add_scalar
    WeightsAndBiases(wandb.init())   a run, or anything with log
    MLflow(mlflow)                   the module, a client's run, or anything with log_metrics

`Means()` writes nothing: it holds the figures for a trainer that reports by itself.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from evenstep.core import Floats
from evenstep.errors import InvalidSetting
from evenstep.runlog.iteration_row import IterationRow, waiting_of

_MANY = 64
"""Up to this number of workers, each has scalars of its own; with more, only the job has."""


class Logger(Protocol):
    """Takes every iteration of a run; an error that it raises ends the logger, not the training."""

    def iteration(self, row: IterationRow, workers: Sequence[str], /) -> None:
        """Write the figures of an iteration."""

    def settled(self, figures: Mapping[str, float], iteration: int, /) -> None:
        """Write the settled figures of the run so far: now and then, and at the end."""

    def close(self) -> None:
        """Write the remaining figures; closing the wrapped writer is up to its owner."""


def scalars_of(row: IterationRow, workers: Sequence[str]) -> dict[str, float]:
    """Return the known figures of an iteration by name.

    >>> row = IterationRow(0, plan=0, start=0.0, batch_sizes=[8, 24], times=[0.1, 0.4])
    >>> scalars_of(row, ["a", "b"])["evenstep/iteration_time"]
    0.4
    """
    times = row.times
    waiting = times * math.nan if row.waiting is None else row.waiting
    if not any(map(math.isfinite, times.tolist())):
        return {}
    waiting = waiting_of(waiting[None], times[None])[0]
    worked, waited = (_sum(values) for values in (times, waiting))
    scalars = {
        "evenstep/iteration_time": max(t + w for t, w in _both(times, waiting)),
        "evenstep/waiting_share": waited / (waited + worked) if waited + worked > 0 else 0.0,
        "evenstep/plan": float(row.plan),
    }
    if len(workers) <= _MANY:
        quantities = {
            "batch_size": row.batch_sizes, "time": times, "waiting": waiting, "speed": row.speeds,
            "predicted_speed": row.predicted_speeds, "cpu": row.cpu, "memory": row.memory,
        }  # fmt: skip
        for name, values in quantities.items():
            if values is not None:
                pairs = zip(workers, values.tolist(), strict=True)
                scalars |= {f"evenstep/{name}/{worker}": float(value) for worker, value in pairs}
    return {name: value for name, value in scalars.items() if math.isfinite(value)}


class TensorBoard:
    """Writes scalars with a SummaryWriter, one in `every` iterations."""

    def __init__(self, writer: Any, every: int = 1) -> None:
        self._writer, self._every = writer, _checked(every)

    def iteration(self, row: IterationRow, workers: Sequence[str]) -> None:
        if row.iteration % self._every == 0:
            for name, value in scalars_of(row, workers).items():
                self._writer.add_scalar(name, value, row.iteration)

    def settled(self, figures: Mapping[str, float], iteration: int) -> None:
        for name, value in figures.items():
            self._writer.add_scalar(name, value, iteration)

    def close(self) -> None:
        self._writer.flush()


class WeightsAndBiases:
    """Logs to a run of Weights & Biases, one in `every` iterations.

    The iteration is a separate figure, `evenstep/iteration`: the run's steps are left to the user.
    """

    def __init__(self, run: Any, every: int = 1) -> None:
        self._run, self._every = run, _checked(every)

    def iteration(self, row: IterationRow, workers: Sequence[str]) -> None:
        if row.iteration % self._every == 0:
            self._run.log({"evenstep/iteration": row.iteration, **scalars_of(row, workers)})

    def settled(self, figures: Mapping[str, float], iteration: int) -> None:
        self._run.log({"evenstep/iteration": iteration, **figures})

    def close(self) -> None:
        pass


class MLflow:
    """Logs metrics to the active run of MLflow, one in `every` iterations."""

    def __init__(self, mlflow: Any, every: int = 1) -> None:
        self._mlflow, self._every = mlflow, _checked(every)

    def iteration(self, row: IterationRow, workers: Sequence[str]) -> None:
        if row.iteration % self._every == 0:
            self._mlflow.log_metrics(_named(scalars_of(row, workers)), step=row.iteration)

    def settled(self, figures: Mapping[str, float], iteration: int) -> None:
        self._mlflow.log_metrics(dict(figures), step=iteration)

    def close(self) -> None:
        pass


class Means:
    """Holds the mean of each figure over the iterations since the last call of `take`."""

    def __init__(self) -> None:
        self._sums: dict[str, float] = {}
        self._counts: Counter[str] = Counter()
        self._settled: dict[str, float] = {}

    def iteration(self, row: IterationRow, workers: Sequence[str]) -> None:
        for name, value in scalars_of(row, workers).items():
            self._sums[name] = self._sums.get(name, 0.0) + value
            self._counts[name] += 1

    def settled(self, figures: Mapping[str, float], iteration: int) -> None:
        self._settled = dict(figures)

    def close(self) -> None:
        pass

    def take(self) -> dict[str, float]:
        """Return the means, and begin again.

        >>> means = Means()
        >>> for times in ([0.1, 0.4], [0.3, 0.2]):
        ...     row = IterationRow(0, plan=0, start=0.0, batch_sizes=[8, 24], times=times)
        ...     means.iteration(row, ["a", "b"])
        >>> taken = means.take()
        >>> taken["evenstep/iteration_time"], taken["evenstep/batch_size/b"]
        (0.35, 24.0)
        >>> means.take()
        {}
        """
        means = {name: total / self._counts[name] for name, total in self._sums.items()}
        means |= self._settled
        # A number that counts plans: its mean says nothing.
        means.pop("evenstep/plan", None)
        self._sums, self._counts, self._settled = {}, Counter(), {}
        return means


def _checked(every: int) -> int:
    if every < 1:
        raise InvalidSetting(f"every must be at least 1 iteration, got {every}")
    return every


def _named(scalars: Mapping[str, float]) -> dict[str, float]:
    """Return the metrics under names that MLflow allows: letters, digits, and ``_-. :/``."""
    return {
        "".join(letter if letter.isalnum() or letter in "_-. :/" else "_" for letter in name): value
        for name, value in scalars.items()
    }


def _sum(values: Floats) -> float:
    return math.fsum(value for value in values.tolist() if math.isfinite(value))


def _both(times: Floats, waiting: Floats) -> list[tuple[float, float]]:
    """Return the pairs with a known time; unknown waiting counts as 0."""
    pairs = zip(times.tolist(), waiting.tolist(), strict=True)
    return [(t, w if math.isfinite(w) else 0.0) for t, w in pairs if math.isfinite(t)]
