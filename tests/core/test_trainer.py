"""Trainers: at once or in the background."""

import threading
import time

import numpy as np
import pytest

from evenstep.core import TrainInBackground, TrainNow
from evenstep.predictors.ema import Ema


class Trainee(Ema):
    """Has a training due while `due` is set, and keeps the adopted results."""

    def __init__(self, *due):
        super().__init__(1)
        self.due = list(due)
        self.adopted = []

    def training(self):
        return self.due.pop(0) if self.due else None

    def adopt(self, result):
        self.adopted.append(result)


def fail():
    raise ValueError("no such luck")


def poll_until(trainer, trainee, done):
    deadline = time.monotonic() + 10
    while not done() and time.monotonic() < deadline:
        trainer.poll(trainee)
        time.sleep(0.001)
    assert done()


@pytest.fixture
def background():
    trainer = TrainInBackground()
    yield trainer
    trainer.close()


@pytest.mark.parametrize("trainer", [TrainNow(), TrainInBackground()], ids=["now", "background"])
def test_predictor_without_trainings_is_left_alone(trainer):
    threads = threading.active_count()
    trainer.poll(Ema(3))
    trainer.poll(Trainee())
    trainer.close()
    assert threading.active_count() == threads
    assert trainer.failure is None


def test_training_now_is_adopted_within_the_poll():
    trainee = Trainee(lambda: "first", lambda: "second")
    trainer = TrainNow()
    trainer.poll(trainee)
    assert trainee.adopted == ["first"]
    trainer.poll(trainee)
    assert trainee.adopted == ["first", "second"]


def test_failure_now_is_kept_and_not_raised():
    trainee = Trainee(fail, lambda: "second")
    trainer = TrainNow()
    trainer.poll(trainee)
    assert repr(trainer.failure) == "ValueError('no such luck')"
    trainer.poll(trainee)
    assert trainer.failure is None
    assert trainee.adopted == ["second"]


def test_construction_starts_no_thread():
    threads = threading.active_count()
    TrainInBackground()
    assert threading.active_count() == threads


def test_poll_does_not_wait_for_a_training(background):
    release = threading.Event()
    trainee = Trainee(lambda: release.wait(10) and "first")
    for _ in range(3):
        background.poll(trainee)
    assert trainee.adopted == []
    release.set()
    poll_until(background, trainee, lambda: trainee.adopted == ["first"])


def test_one_training_at_a_time_off_the_deciding_thread(background):
    running, seen, names = [], [], []

    def work():
        running.append(1)
        seen.append(len(running))
        names.append(threading.current_thread().name)
        time.sleep(0.01)
        running.pop()
        return "done"

    trainee = Trainee(work, work, work)
    poll_until(background, trainee, lambda: trainee.adopted == ["done"] * 3)
    assert seen == [1, 1, 1]
    assert threading.current_thread().name not in names


def test_failure_in_the_background_is_kept_and_the_next_training_runs(background):
    release = threading.Event()
    trainee = Trainee(fail, lambda: release.wait(10) and "second")
    poll_until(background, trainee, lambda: background.failure is not None)
    assert repr(background.failure) == "ValueError('no such luck')"
    release.set()
    poll_until(background, trainee, lambda: trainee.adopted == ["second"])
    assert background.failure is None


def test_failure_to_adopt_is_kept_too(background):
    class Picky(Trainee):
        def adopt(self, result):
            fail()

    trainee = Picky(lambda: "first")
    poll_until(background, trainee, lambda: background.failure is not None)


def test_result_goes_to_the_predictor_that_asked(background):
    first, second = Trainee(lambda: "first"), Trainee()
    background.poll(first)
    poll_until(background, second, lambda: first.adopted == ["first"])
    assert second.adopted == []


def test_close_does_not_wait_and_drops_the_training():
    release = threading.Event()
    trainee = Trainee(lambda: release.wait(10) and "first", lambda: "second")
    trainer = TrainInBackground()
    trainer.poll(trainee)
    trainer.close()
    poll_until(trainer, trainee, lambda: trainee.adopted == ["second"])
    release.set()
    trainer.close()


def test_prediction_goes_on_while_training(background):
    release = threading.Event()
    trainee = Trainee(release.wait)
    trainee.observe(np.array([5.0]), np.ones(1), np.ones(1))
    background.poll(trainee)
    assert trainee.predict(np.ones(1), np.ones(1)).tolist() == [5.0]
    release.set()
