"""Loggers: the figures of iterations, through the writers of TensorBoard, W&B and MLflow."""

from typing import Any

import numpy as np
import pytest

from evenstep.errors import InvalidSetting
from evenstep.runlog.loggers import MLflow, TensorBoard, WeightsAndBiases, scalars_of
from tests.runlog.examples import row

WORKERS = ("gpu-0", "gpu <1>")


def rows(count=4):
    return [row(k, [24, 8], [0.2, 0.1], waiting=[0.0, 0.1], cpu=[1.0, 0.5]) for k in range(count)]


class StandIn:
    """Does as the three of them do, and remembers."""

    def __init__(self):
        self.scalars: list[tuple[str, float, int]] = []
        self.dicts: list[tuple[dict[str, Any], int | None]] = []
        self.flushed = 0

    def add_scalar(self, tag, value, step):
        self.scalars.append((tag, value, step))

    def flush(self):
        self.flushed += 1

    def log(self, data):
        self.dicts.append((data, None))

    def log_metrics(self, metrics, step):
        self.dicts.append((metrics, step))


def test_scalars_are_those_of_the_iteration_and_of_each_worker():
    scalars = scalars_of(rows(1)[0], WORKERS)
    assert scalars["evenstep/iteration_time"] == pytest.approx(0.2)
    assert scalars["evenstep/waiting_share"] == pytest.approx(0.25)
    assert scalars["evenstep/batch_size/gpu-0"] == 24.0
    assert scalars["evenstep/speed/gpu <1>"] == pytest.approx(80.0)
    assert scalars["evenstep/cpu/gpu <1>"] == 0.5
    assert "evenstep/memory/gpu-0" not in scalars


def test_what_is_unknown_is_left_out():
    scalars = scalars_of(row(0, [32, 0], [0.2, np.nan], waiting=[0.0, 0.2]), WORKERS)
    assert "evenstep/time/gpu <1>" not in scalars
    assert scalars["evenstep/iteration_time"] == pytest.approx(0.2)
    assert scalars_of(row(0, [32, 0], [np.nan, np.nan]), WORKERS) == {}
    assert scalars_of(row(0, [16, 16], [0.1, 0.3]), WORKERS)["evenstep/waiting/gpu-0"] == (
        pytest.approx(0.2)
    )


def test_of_very_many_workers_only_the_job_has_scalars():
    many = row(0, [1] * 100, [0.1] * 100)
    assert len(scalars_of(many, [f"w{i}" for i in range(100)])) == 3


def test_each_logger_speaks_as_its_writer_does():
    board, run, mlflow = StandIn(), StandIn(), StandIn()
    loggers = TensorBoard(board, every=2), WeightsAndBiases(run), MLflow(mlflow)
    for logger in loggers:
        for one in rows():
            logger.iteration(one, WORKERS)
        logger.settled({"evenstep/settled/gain": 1.5}, 3)
        logger.close()
    assert board.scalars.pop() == ("evenstep/settled/gain", 1.5, 3)
    assert run.dicts.pop() == ({"evenstep/iteration": 3, "evenstep/settled/gain": 1.5}, None)
    assert mlflow.dicts.pop() == ({"evenstep/settled/gain": 1.5}, 3)
    assert ("evenstep/batch_size/gpu-0", 24.0, 2) in board.scalars
    assert {step for _, _, step in board.scalars} == {0, 2} and board.flushed == 1
    assert [data["evenstep/iteration"] for data, _ in run.dicts] == [0, 1, 2, 3]
    assert [step for _, step in mlflow.dicts] == [0, 1, 2, 3]
    assert mlflow.dicts[0][0]["evenstep/batch_size/gpu _1_"] == 8.0


def test_real_tensorboard_reads_what_is_written(tmp_path):
    reading = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(tmp_path)) as writer:
        logger = TensorBoard(writer)
        for one in rows():
            logger.iteration(one, WORKERS)
        logger.close()
    events = reading.EventAccumulator(str(tmp_path))
    events.Reload()
    told = events.Scalars("evenstep/iteration_time")
    assert [(event.step, round(event.value, 6)) for event in told] == [(k, 0.2) for k in range(4)]


@pytest.mark.parametrize("logger", [TensorBoard, WeightsAndBiases, MLflow])
def test_every_no_iteration_is_refused_when_the_logger_is_made(logger):
    with pytest.raises(InvalidSetting, match="every must be at least 1 iteration, got 0"):
        logger(None, every=0)
