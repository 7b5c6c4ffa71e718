"""Who runs a training: at once, or in the background while decisions go on.

A trainer is polled at every boundary. It hands finished models to the predictor and starts the
next training that is due, so that a decision always uses the newest finished model. Whatever a
training raises stays here, as `failure`: a job must not end because a model could not be trained.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

from evenstep.core.predictor import Predictor, Trainable


class Trainer(Protocol):
    """Runs the trainings of a predictor; with one that has none there is nothing to do."""

    failure: Exception | None
    """What the last training raised; None if it ended well."""

    def poll(self, predictor: Predictor) -> None:
        """Adopt what is finished and start what is due."""
        ...

    def close(self) -> None:
        """Give up a training that goes on."""
        ...


class TrainNow:
    """Runs a training where it is due: every run comes to the same models, as a simulation must."""

    def __init__(self) -> None:
        self.failure: Exception | None = None

    def poll(self, predictor: Predictor) -> None:
        if isinstance(predictor, Trainable) and (work := predictor.training()) is not None:
            self.failure = _adopt(predictor, work)

    def close(self) -> None:
        """Do nothing: nothing goes on."""


class TrainInBackground:
    """Runs one training at a time on a thread of its own; a poll never waits for it."""

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
        """Give up a training that goes on: its thread ends with it, and nobody adopts the result.

        The next poll would start anew.
        """
        if self._thread is not None:
            self._thread.shutdown(wait=False, cancel_futures=True)
        self._thread = self._training = None

    def _start(self, work: Callable[[], object]) -> Future[object]:
        if self._thread is None:
            self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="evenstep-train")
        return self._thread.submit(work)


def _adopt(trainee: Trainable, work: Callable[[], object]) -> Exception | None:
    """Let `trainee` adopt the result of `work`, or return what went wrong."""
    try:
        trainee.adopt(work())
    except Exception as failure:
        return failure
    return None
