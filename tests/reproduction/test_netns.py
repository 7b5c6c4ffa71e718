"""Four workers train behind real links; where that is not permitted, the reason is given."""

import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from shutil import which

import numpy as np
import psutil
import pytest

from evenstep.errors import EvenstepError
from evenstep.simulator.clusters.scenarios import make_scenario
from evenstep.simulator.engine.simulation import Setup
from evenstep.simulator.workloads import NUM_TRAINING
from reproduction.four_gpus import OURS, PAPERS
from reproduction.netns.isolation import NEEDS
from reproduction.netns.results import ROUNDING, for_real
from reproduction.netns.run import run_in_netns
from reproduction.netns.training import SCALE
from reproduction.parts import NO_PARTS, Parts

pytestmark = [pytest.mark.reproduction, pytest.mark.timeout(300)]

ENDLESS = 100_000
"""Iterations of a run that is ended from outside."""


@pytest.fixture(scope="module")
def in_netns():
    """A run of three epochs, whose line is degraded in the middle."""
    try:
        return run_in_netns(Setup("equal_finish"), iterations=36, change_at=18)
    except EvenstepError as reason:
        if NEEDS not in str(reason):
            raise
        pytest.skip(str(reason))


def test_every_sample_is_used_exactly_once_per_epoch(in_netns):
    uses = in_netns.uses(NUM_TRAINING)
    assert uses.shape == (3, NUM_TRAINING)
    assert np.unique(uses).tolist() == [1]


def test_batches_are_unequal_and_keep_the_total(in_netns):
    assert in_netns.workers == ["V100", "M60", "K80", "K520"]
    assert np.unique(in_netns.sizes.sum(axis=1)).tolist() == [128]
    assert in_netns.sizes[17][0] > in_netns.sizes[17][3]


def test_what_was_trained_is_what_one_process_trains(in_netns):
    assert in_netns.difference < ROUNDING


def test_gradients_are_really_trained(in_netns):
    # One of ten digits: who guesses is right in a tenth of the cases.
    assert in_netns.accuracy > 0.8


def test_degraded_line_makes_the_batch_of_its_worker_smaller(in_netns):
    sizes = in_netns.sizes[:, in_netns.workers.index("M60")]
    assert sizes[-5:].mean() < sizes[13:18].mean()


def test_time_has_the_line_in_it(in_netns):
    curves = make_scenario("G", noisy=False).curves
    on_the_line = in_netns.times - SCALE * np.array([curves.times_at(x) for x in in_netns.sizes])
    before, after = (np.median(half, axis=0) for half in np.split(on_the_line, 2))
    m60 = in_netns.workers.index("M60")
    # A quarter of the bandwidth: other load on this machine slows the other workers, too.
    assert after[m60] > 1.5 * max(before[m60], *np.delete(after, m60))


def test_run_is_kept_as_a_part(in_netns, tmp_path, monkeypatch):
    first = for_real(4, 2, Parts(tmp_path), lambda share, text: None)
    # Not made again: nothing could be.
    monkeypatch.setenv("PATH", "")
    again = for_real(4, 2, Parts(tmp_path), lambda share, text: None)
    assert again == first
    (table,) = first.tables
    assert [row["policy"] for row in table.rows] == [OURS, PAPERS]


def only(tmp_path, *commands):
    """Return a PATH on which there are these commands and no others."""
    for command in commands:
        (tmp_path / command).symlink_to(which(command))
    return str(tmp_path)


@pytest.mark.parametrize(("there", "missing"), [((), "ip"), (("ip", "nsenter"), "tc")])
def test_command_that_is_missing_is_named(in_netns, there, missing, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", only(tmp_path, *there))
    rule = f"workers cannot be put behind lines here: {missing} must be installed"
    with pytest.raises(EvenstepError, match=rule):
        run_in_netns(Setup("equal_finish"), iterations=2, change_at=1)


def test_what_may_not_be_done_for_real_is_said(monkeypatch):
    monkeypatch.setenv("PATH", "")
    result = for_real(2, 1, NO_PARTS, lambda share, text: None)
    (said,) = result.differences
    assert said.startswith("Not for real: ")
    assert NEEDS in said


def test_policy_that_does_not_exist_is_named(in_netns):
    with pytest.raises(EvenstepError, match=r"policy must be one of.*got 'no-such'"):
        run_in_netns(Setup("no-such"), iterations=2, change_at=1)


@pytest.fixture
def endless(in_netns):
    """A process that follows a run without end, and all processes that came of it."""
    code = "from evenstep.simulator.engine.simulation import Setup\n"
    code += "from reproduction.netns.run import run_in_netns as follow\n"
    code += f"follow(Setup('equal_finish'), {ENDLESS}, 1)"
    outer = subprocess.Popen(
        [sys.executable, "-c", code],
        stderr=subprocess.PIPE,
        text=True,
        # Tests in the background of a shell ignore SIGINT, and so would the process.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        yield outer, wait_for_workers(outer)
    finally:
        # With it ends all that came of it, as a test here shows.
        outer.kill()
        outer.communicate()


def wait_for_workers(outer):
    """Return the hub below a process and the four workers, once these are connected."""
    deadline = time.monotonic() + 120
    found: list[psutil.Process] = []
    while sum(map(is_connected, found)) < 5:
        assert outer.poll() is None and time.monotonic() < deadline
        time.sleep(0.1)
        found = psutil.Process(outer.pid).children(recursive=True)
    return found


def is_connected(process):
    """Whether there is a TCP connection in the network of a process."""
    established = " 01 "
    try:
        return established in Path(f"/proc/{process.pid}/net/tcp").read_text()
    except OSError:
        # It has ended since.
        return False


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_however_the_run_is_ended(endless, number):
    outer, family = endless
    outer.send_signal(number)
    assert psutil.wait_procs(family, timeout=20)[1] == []
    assert outer.wait(20) != 0


def test_worker_that_ends_is_named(endless):
    outer, family = endless
    hub = next(process for process in family if process.ppid() == outer.pid)
    hub.children()[-1].kill()
    _, said = outer.communicate(timeout=60)
    assert re.search(r"must stay\b.*\bexit code -9\b", said.splitlines()[-1])
    assert psutil.wait_procs(family, timeout=20)[1] == []


def test_nothing_is_seen_outside_of_the_namespaces(endless):
    _, family = endless
    here, *networks = (
        Path(f"/proc/{pid}/ns/net").readlink() for pid in ("self", *(p.pid for p in family))
    )
    assert len(set(networks)) == 5
    assert here not in networks
    assert not Path("/sys/class/net/v0").exists()
