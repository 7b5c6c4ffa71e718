"""``evenstep demo``: two short runs of real training, what it finds, and what it leaves behind."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

from evenstep import runlog
from evenstep.cli.demo_result import DemoResult
from evenstep.cli.demo_settings import DemoSettings
from evenstep.cli.main import main
from evenstep.errors import EvenstepError
from evenstep.runlog import Event, Header, IterationRow, RunLogWriter
from evenstep.simulator.load.throttle import Throttles
from tests.estimates.test_views import told
from tests.figures import numbers_in

DEMO = [sys.executable, "-m", "evenstep", "demo", "--workers", "2", "--epochs", "1"]
GROUPS = Path("/sys/fs/cgroup/cpu")


def can_throttle():
    try:
        with Throttles([0.5]):
            return True
    except EvenstepError:
        return False


def processes_of(demo):
    """The worker processes, and torchrun: they carry the number of the demo's process."""
    mark = f"evenstep-{demo.pid}-"
    return [
        process
        for process in psutil.process_iter(["cmdline"])
        if any(word.startswith(mark) for word in process.info["cmdline"] or ())
    ]


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """A demo that ran to its end: its folder, its figures, and its process."""
    folder = tmp_path_factory.mktemp("demo")
    process = subprocess.Popen(
        [*DEMO, "--json", "--out", str(folder)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    out, err = process.communicate(timeout=170)
    assert (process.returncode, err) == (0, b""), (out, err)
    return folder, json.loads(out), process


@pytest.mark.distributed
@pytest.mark.timeout(180)
def test_both_runs_train_the_same_net(demo):
    _, figures, _ = demo
    assert figures["largest_difference"] < 1e-5 < figures["largest_parameter"]
    assert figures["accuracy"]["plain"] == pytest.approx(figures["accuracy"]["balanced"], abs=0.01)


@pytest.mark.distributed
def test_balancing_is_faster_and_nobody_beats_the_optimum(demo):
    _, figures, _ = demo
    assert figures["source"] == "emulated"
    assert figures["workers"] == ["V100", "M60"]
    assert figures["plain_run"]["straggler"]["worker"] == "M60"
    assert figures["plain_is"] == "plain BSP"
    assert figures["plain_phase"]["batch_sizes"] == [32, 32]
    assert figures["gain"]["value"] > 1.1
    assert figures["above_optimum"] > -0.01
    assert sum(figures["optimum_batch_sizes"]) == 64


@pytest.mark.distributed
def test_speedup_by_the_clock_is_that_of_the_run_logs(demo):
    folder, figures, _ = demo
    seconds = {}
    for run in ("plain", "balanced"):
        run_log = runlog.read(folder / f"demo-{run}.jsonl")
        seconds[run] = run_log.starts[-1] + run_log.iteration_times[-1]
    assert figures["seconds"] == pytest.approx(seconds)
    by_clock = seconds["plain"] / seconds["balanced"]
    assert figures["speedup_by_clock"] == pytest.approx(by_clock)
    # The exchange of gradients and the first iterations only take from the gain.
    assert by_clock < figures["gain"]["value"]


@pytest.mark.distributed
@pytest.mark.timeout(180)
def test_views_of_a_real_training_say_the_same(demo, capsys, tmp_path):
    _, figures, _ = demo
    log = figures["files"]["run log, balanced"]
    capsys.readouterr()
    said = []
    page = ["-o", str(tmp_path / "page.html")]
    for command in (["report", *page], ["advise"], ["watch"]):
        assert main([*command, log]) == 0
        found = told(capsys.readouterr().out)
        said.append((found["gain"], found["plain"], found["waiting"]))
    assert said[0] == said[1] == said[2]
    assert said[0][0]


def test_one_sentence_has_both_speedups(demo_result):
    (line,) = [line for line in demo_result.lines() if "by the clock" in line]
    assert numbers_in(line) == [4.0, 3, 7.0, 2.5, 2.8, 500, 500]


@pytest.fixture
def demo_result(tmp_path):
    """Two made-up runs of three iterations of 2 s and 0.5 s, with 0.5 s for each exchange."""
    settings = DemoSettings(str(tmp_path), num_workers=2)
    settings.result.write_text(
        json.dumps(
            {
                "largest_difference": 0.0,
                "largest_parameter": 1.0,
                "accuracy": {"plain": 0.9, "balanced": 0.9},
                "late_batches": 0,
            }
        )
    )
    for run, seconds in (("plain", 2.0), ("balanced", 0.5)):
        header = Header("emulated", "demo", ("V100", "M60"), 64, "equal_finish", "none", seed=0)
        with RunLogWriter(settings.log(run), header) as log:
            for k in range(3):
                times, sizes = np.full(2, seconds), np.array([32, 32])
                log.iteration(IterationRow(k, 0, k * (seconds + 0.5), sizes, times, np.zeros(2)))
            log.event(Event("end", 3))
    return DemoResult.of(settings)


@pytest.mark.distributed
def test_plot_report_and_run_logs_are_there_and_nothing_else(demo):
    folder, figures, process = demo
    expected = {"demo.png", "demo.html", "demo-plain.jsonl", "demo-balanced.jsonl"}
    assert {Path(path).name for path in figures["files"].values()} == expected
    assert {path.name for path in folder.iterdir()} == expected
    for run in ("plain", "balanced"):
        run_log = runlog.read(folder / f"demo-{run}.jsonl")
        assert (run_log.ended, run_log.num_iterations) == (True, 24)
        assert (run_log.segments[0].batch_sizes.sum(axis=1) == 64).all()
    assert "Emulated" in (folder / "demo.html").read_text()
    assert processes_of(process) == []


@pytest.mark.distributed
@pytest.mark.timeout(180)
def test_interrupt_leaves_neither_processes_nor_control_groups(tmp_path):
    throttle = ["--throttle"] if can_throttle() else []
    demo = subprocess.Popen(
        [*DEMO, *throttle, "--out", str(tmp_path)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        # In a background job of a shell, interrupts would be ignored from the start.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    log = tmp_path / "demo-plain.jsonl"
    while demo.poll() is None and not (log.exists() and log.read_text().count("\n") > 4):
        time.sleep(0.1)
    assert len(processes_of(demo)) >= 3
    assert (GROUPS / f"evenstep-{demo.pid}").is_dir() == bool(throttle)
    demo.send_signal(signal.SIGINT)
    out, err = demo.communicate(timeout=60)
    assert (demo.returncode, err) == (130, ""), (out, err)
    assert processes_of(demo) == []
    assert not (GROUPS / f"evenstep-{demo.pid}").exists()


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--workers", "1"], "--workers must be >= 2 to have somebody unequal, got 1"),
        (["--workers", "49"], "--workers must leave 32 of 1536 samples for each, got 49"),
        (["--throttle", "--workers", "5"], "--workers must be <= 4 with --throttle, got 5"),
    ],
)
def test_impossible_demo_is_refused(tmp_path, capsys, argv, message):
    assert main(["demo", "--out", str(tmp_path), *argv]) == 2
    assert capsys.readouterr() == ("", f"evenstep: error: {message}\n")


@pytest.mark.distributed
@pytest.mark.timeout(120)
def test_failing_worker_is_told_in_one_line(tmp_path):
    (tmp_path / "sklearn.py").write_text("raise RuntimeError('no digits today')")
    done = subprocess.run(
        [*DEMO, "--out", str(tmp_path)], env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True, text=True, timeout=110,
    )  # fmt: skip
    assert done.returncode == 2
    assert re.fullmatch(
        r"evenstep: error: the training failed .*RuntimeError: no digits today .*\n", done.stderr
    )
