"""Who runs a training: at once, or in the background while decisions go on."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

from evenstep.predictors.predictor import Predictor, Trainable


class Trainer(Protocol):
    """Runs the trainings of a predictor off the decision path."""

    def poll(self, predictor: Predictor) -> None:
        """Let the predictor adopt what is finished, and begin what is due; never waits."""
        ...

    def close(self) -> None:
        """Begin nothing more."""
        ...


class TrainNow:
    """Trains at once: for virtual time, where it costs nothing, and for exact repetition."""

    def poll(self, predictor: Predictor) -> None:
        if not isinstance(predictor, Trainable):
            return
        work = predictor.training()
        if work is not None:
            predictor.adopt(work())

    def close(self) -> None:
        pass


class TrainInBackground:
    """Trains in one thread, one training at a time; the decision uses the newest finished model.

    A training that fails is remembered in `failure` and the old models go on.
    """

    def __init__(self) -> None:
        self._executor: ThreadPoolExecutor | None = None
        self._going_on: Future[object] | None = None
        self.failure: BaseException | None = None

    def poll(self, predictor: Predictor) -> None:
        if not isinstance(predictor, Trainable):
            return
        if self._going_on is not None:
            if not self._going_on.done():
                return
            self.failure = self._going_on.exception()
            if self.failure is None:
                predictor.adopt(self._going_on.result())
            self._going_on = None
        work = predictor.training()
        if work is not None:
            if self._executor is None:
                self._executor = ThreadPoolExecutor(1, thread_name_prefix="evenstep-training")
            self._going_on = self._executor.submit(work)

    def close(self) -> None:
        if self._executor is not None:
            self._executor.shutdown(wait=True, cancel_futures=True)
            self._executor = None
