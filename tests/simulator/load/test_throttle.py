"""Throttling: control groups of both versions, and signals where there are none."""

import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from evenstep.errors import EvenstepError
from evenstep.simulator.load.throttle import Throttles, set_share


def busy():
    return subprocess.Popen([sys.executable, "-c", "while True: pass"])


def cpu_share(process, seconds):
    watched = psutil.Process(process.pid)
    before, start = watched.cpu_times().user, time.monotonic()
    time.sleep(seconds)
    return (watched.cpu_times().user - before) / (time.monotonic() - start)


def test_groups_are_removed_whatever_happens(tmp_path):
    with pytest.raises(EvenstepError, match=r"CPUs .*throttled .*\broot\b"):
        Throttles([0.5], root=tmp_path).__enter__()
    assert list(tmp_path.iterdir()) == []


def test_v1_group_gets_a_quota_of_a_short_period(tmp_path):
    (tmp_path / "cpu.cfs_quota_us").touch()
    set_share(str(tmp_path), 0.25)
    assert (tmp_path / "cpu.cfs_quota_us").read_text() == "2500"
    assert (tmp_path / "cpu.cfs_period_us").read_text() == "10000"
    set_share(str(tmp_path), None)
    assert (tmp_path / "cpu.cfs_quota_us").read_text() == "-1"


def test_v2_group_gets_quota_and_period_in_one(tmp_path):
    (tmp_path / "cpu.max").touch()
    set_share(str(tmp_path), 0.5)
    assert (tmp_path / "cpu.max").read_text() == "5000 10000"
    set_share(str(tmp_path), None)
    assert (tmp_path / "cpu.max").read_text() == "max"


def test_v2_tree_enables_the_controller_for_its_groups(tmp_path, monkeypatch):
    (tmp_path / "cgroup.controllers").write_text("cpuset cpu memory\n")
    (tmp_path / "cgroup.subtree_control").touch()
    make = Path.mkdir

    def mkdir(folder, *args, **kwargs):
        make(folder, *args, **kwargs)
        # As the kernel does.
        (folder / "cgroup.subtree_control").touch()
        if (folder.parent / "cgroup.subtree_control").read_text() == "+cpu":
            (folder / "cpu.max").write_text("max 100000")

    monkeypatch.setattr(Path, "mkdir", mkdir)
    monkeypatch.setattr("evenstep.simulator.load.throttle.remove_group", lambda group: None)
    with Throttles([0.5, 0.25], root=tmp_path) as throttles:
        quotas = [Path(group, "cpu.max").read_text() for group in throttles.groups]
    assert quotas == ["5000 10000", "2500 10000"]


@pytest.mark.timeout(60)
def test_signals_leave_a_process_its_share_and_let_it_go(tmp_path):
    process = busy()
    try:
        with Throttles([0.3], signals=True, root=tmp_path) as throttles:
            Path(throttles.groups[0], "cgroup.procs").write_text(str(process.pid))
            throttled = cpu_share(process, 1.0)
            set_share(throttles.groups[0], None)
            free = cpu_share(process, 1.0)
        assert not Path(throttles.groups[0]).exists()
        # Busy machines take from both.
        assert 0.05 < throttled < 0.6
        assert throttled < 0.8 * free
        assert psutil.Process(process.pid).status() != psutil.STATUS_STOPPED
    finally:
        process.kill()
        process.wait()
