"""Trainers: run the trainings of a predictor, at once or in the background.

A trainer is polled at every boundary. It passes finished models to the predictor and starts the
next training that is due, so that a decision always uses the newest finished model. An exception
in a training is kept as `failure`: a job must not end because a model could not be trained.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

from evenstep.core.predictor import Predictor, Trainable


class Trainer(Protocol):
    """Runs the trainings of a predictor, if it has any."""

    failure: Exception | None
    """The exception of the last training; None if it succeeded."""

    def poll(self, predictor: Predictor) -> None:
        """Adopt a finished training, and start one that is due."""
        ...

    def close(self) -> None:
        """Give up a running training."""
        ...


class TrainNow:
    """Runs a training as soon as it is due, so that simulations are reproducible."""

    def __init__(self) -> None:
        self.failure: Exception | None = None

    def poll(self, predictor: Predictor) -> None:
        if isinstance(predictor, Trainable) and (work := predictor.training()) is not None:
            self.failure = _adopt(predictor, work)

    def close(self) -> None:
        """Do nothing: no training is running."""


class TrainInBackground:
    """Runs one training at a time on a separate thread; a poll never waits for it."""

    def __init__(self) -> None:
        self.failure: Exception | None = None
        self._thread: ThreadPoolExecutor | None = None
        self._training: tuple[Trainable, Future[object]] | None = None

    def poll(self, predictor: Predictor) -> None:
        if self._training is not None:
            trainee, future = self._training
            if not future.done():
                return
            self._training = None
            self.failure = _adopt(trainee, future.result)
        if isinstance(predictor, Trainable) and (work := predictor.training()) is not None:
            self._training = (predictor, self._start(work))

    def close(self) -> None:
        """Give up a running training: its thread ends with it, and its result is dropped.

        Another poll may start a new one.
        """
        if self._thread is not None:
            self._thread.shutdown(wait=False, cancel_futures=True)
        self._thread = self._training = None

    def _start(self, work: Callable[[], object]) -> Future[object]:
        if self._thread is None:
            self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="evenstep-train")
        return self._thread.submit(work)


def _adopt(trainee: Trainable, work: Callable[[], object]) -> Exception | None:
    """Let `trainee` adopt the result of `work`, or return the exception."""
    try:
        trainee.adopt(work())
    except Exception as failure:
        return failure
    return None
