"""Recording a training: run logs and loggers side by side, and what fails among them."""

from evenstep import runlog
from evenstep.core.planner import Planner
from evenstep.policies import Even
from evenstep.training.recorder import Recorder, header_of
from tests.runlog.examples import row


class Remembering:
    def __init__(self, fails_at=None):
        self.rows: list[tuple[int, tuple[str, ...]]] = []
        self.closed = 0
        self._fails_at = fails_at

    def iteration(self, row, workers):
        if row.iteration == self._fails_at:
            raise RuntimeError("the server is away")
        self.rows.append((row.iteration, tuple(workers)))

    def close(self):
        self.closed += 1


def recorded(log, iterations=3):
    planner = Planner(["w0", "w1"], 8, Even())
    recorder = Recorder(log, header_of(planner, "measured", "balanced", "none"))
    for k in range(iterations):
        recorder.record(row(k, [4, 4], [0.1, 0.2]), planner.plan)
    recorder.close(iterations)


def test_run_logs_and_loggers_get_the_same_iterations(tmp_path):
    first, second, logger = tmp_path / "a.jsonl", tmp_path / "b.jsonl", Remembering()
    recorded([str(first), second, logger])
    assert first.read_text() == second.read_text()
    run_log = runlog.read(first)
    assert run_log.iterations.tolist() == [0, 1, 2] and run_log.ended
    assert logger.rows == [(k, ("w0", "w1")) for k in range(3)] and logger.closed == 1


def test_logger_alone_needs_no_list():
    logger = Remembering()
    recorded(logger)
    assert len(logger.rows) == 3


def test_logger_that_fails_ends_and_nothing_else_does(tmp_path, caplog):
    path, bad, good = tmp_path / "a.jsonl", Remembering(fails_at=1), Remembering()
    recorded([bad, str(path), good])
    assert len(bad.rows) == 1 and bad.closed == 0
    assert len(good.rows) == 3 and runlog.read(path).ended
    assert "Remembering failed and is not used any more: the server is away" in caplog.text
