"""evenstep load: a real load for a few seconds, and nothing left however it ends."""

import json
import os
import re
import signal
import subprocess
import sys
import time

import psutil
import pytest

from evenstep.cli.main import main

CORE = str(min(os.sched_getaffinity(0)))
TASKS = "start,end,cpu,memory\n0,40,0.2,0.002\n20,40,0.2,0.001\n"


@pytest.fixture
def trace(tmp_path):
    path = tmp_path / "tasks.csv"
    path.write_text(TASKS)
    return str(path)


@pytest.fixture
def start(trace):
    """Starts a load that would last for minutes, and waits until it has begun."""
    started = []

    def start():
        command = [sys.executable, "-m", "evenstep", "load", trace, "--cores", CORE]
        process = subprocess.Popen([*command, "--duration", "300"], stdout=subprocess.PIPE)
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline().startswith(b"Load on cores " + CORE.encode())
        children = psutil.Process(process.pid).children(recursive=True)
        assert len(children) == 2
        return process, children

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_a_replay_gets_what_it_wants_or_says_what_it_waited_for(trace, capsys):
    begun = time.perf_counter()
    assert main(["load", trace, "--cores", CORE, "--speedup", "10", "--json"]) == 0
    assert 3.9 < time.perf_counter() - begun < 60
    summary = json.loads(capsys.readouterr().out)
    assert summary["cores"] == [int(CORE)]
    assert summary["duration"] == pytest.approx(4, abs=0.5)
    assert summary["stopped"] is None
    first, second = summary["levels"]
    assert (first["second"], first["cpu_wanted"]) == (0, 0.2)
    assert (second["second"], second["cpu_wanted"]) == (20, 0.4)
    assert first["memory_wanted"] < second["memory_wanted"]
    for level in (first, second):
        assert level["memory_allowed"] <= level["memory_wanted"]
        assert 0 <= level["memory_allowed"] - level["memory_got"] < 4 << 20
        if level["cpu_waited"] > 2 * level["cpu_wanted"]:
            pytest.skip(f"this machine is too busy: {level['cpu_waited']:.2f} was waited for")
        assert level["cpu_got"] < level["cpu_wanted"] + 0.1
        assert level["cpu_got"] + level["cpu_waited"] > level["cpu_wanted"] - 0.1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_in_good_order(start, number):
    process, children = start()
    process.send_signal(number)
    output, _ = process.communicate(timeout=30)
    assert process.returncode == 128 + number
    assert b"of the cores and got" in output
    assert not any(child.is_running() for child in children)


def test_its_processes_die_with_it(start):
    process, children = start()
    process.kill()
    process.wait()
    _, alive = psutil.wait_procs(children, timeout=10)
    assert alive == []


def test_all_is_said_beforehand(trace, capsys):
    assert main(["load", trace, "--cores", CORE, "--duration", "0.2"]) == 0
    said = capsys.readouterr().out
    assert f"Load on cores {CORE} for 0.2 s: 1 levels of {trace}, 1 times as fast." in said
    assert "CPU: 20% to 20% of each core. Memory: 0% to 0%" in said
    assert re.search(r"\b2 processes; Ctrl-C", said)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--cores", "9999"], "cores must be of those that may be used"),
        (["--cores", "x"], "cores must be like 0-7 or 1,4,9, got 'x'"),
        (["--worker", "w"], "a worker goes with B:usage or B:tasks, got 'w' with a file"),
    ],
)
def test_wrong_arguments_are_refused(trace, capsys, arguments, message):
    assert main(["load", trace, *arguments]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["--speedup", "0"], ["--memory-cap", "1.5"]])
def test_wrong_numbers_are_refused(trace, capsys, arguments):
    with pytest.raises(SystemExit):
        main(["load", trace, *arguments])
    assert "must be a number > 0" in capsys.readouterr().err


def test_a_bad_trace_is_told_with_its_place(tmp_path, capsys):
    path = tmp_path / "bad.csv"
    path.write_text("start,end,cpu,memory\n0,1,0.5,7\n")
    assert main(["load", str(path)]) == 2
    assert re.search(
        rf"{re.escape(str(path))}:2: memory .*0\.\.1, got 7$", capsys.readouterr().err, re.M
    )
