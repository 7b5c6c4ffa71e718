"""The usage probe: c over a short window that ends now, bounded by a quota."""

import multiprocessing
import os
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from evenstep.measure import usage
from evenstep.measure.accounts import CpuTimes
from evenstep.measure.cgroups import MemoryLimit
from evenstep.measure.usage import UsageProbe


class Account:
    """An account with the given CPU times."""

    def __init__(self):
        self.now = CpuTimes(at=0.0, running=0.0, waiting=0.0)

    def read(self):
        return self.now

    def refresh(self): ...

    def close(self): ...

    def go_on(self, seconds, running, waiting=0.0):
        at = self.now.at + seconds
        self.now = CpuTimes(at, self.now.running + running, self.now.waiting + waiting)


@pytest.fixture
def account():
    return Account()


@pytest.fixture
def probe(account, monkeypatch):
    monkeypatch.setattr(usage, "cpu_quota", lambda: None)
    monkeypatch.setattr(usage, "memory_limit", lambda: None)
    made = UsageProbe(window=1000.0, account=account)
    yield made
    made.close()


def test_c_is_the_share_of_the_wanted_time_that_was_got(probe, account):
    assert probe.read().cpu == 1.0
    account.go_on(1.0, running=0.3, waiting=0.1)
    assert probe.read().cpu == pytest.approx(0.75)


def test_a_process_that_wants_nothing_gets_what_it_got_before(probe, account):
    probe.read()
    account.go_on(1.0, running=0.0)
    assert probe.read().cpu == 1.0


def test_a_reading_covers_the_window_that_ends_now(account, monkeypatch):
    monkeypatch.setattr(usage, "cpu_quota", lambda: None)
    probe = UsageProbe(window=0.05, account=account)
    try:
        probe.read()
        account.go_on(10.0, running=1.0, waiting=9.0)
        until = time.monotonic() + 10
        # Wait until the thread has taken a snapshot of that time.
        while probe._snapshots[-1].at < 10.0 and time.monotonic() < until:
            time.sleep(0.01)
        account.go_on(0.06, running=0.06)
        assert probe.read().cpu == 1.0
    finally:
        probe.close()


def test_quota_bounds_c(account, monkeypatch):
    monkeypatch.setattr(usage, "cpu_quota", lambda: 0.25)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0})
    probe = UsageProbe(window=1000.0, account=account)
    assert probe.read().cpu == 0.25
    probe.close()


def test_a_quota_that_changes_is_noticed(account, monkeypatch):
    quotas = [0.5]
    monkeypatch.setattr(usage, "cpu_quota", lambda: quotas[-1])
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0})
    probe = UsageProbe(window=0.01, account=account, refresh=0.02)
    try:
        assert probe.read().cpu == 0.5
        quotas.append(0.25)
        until = time.monotonic() + 10
        while probe.read().cpu == 0.5 and time.monotonic() < until:
            time.sleep(0.01)
        assert probe.read().cpu == 0.25
    finally:
        probe.close()


def test_limit_of_the_group_bounds_m(monkeypatch, tmp_path, account):
    used = tmp_path / "used"
    used.write_text("900\n")
    monkeypatch.setattr(usage, "memory_limit", lambda: MemoryLimit(1000, used))
    probe = UsageProbe(window=1000.0, account=account)
    assert probe.read().memory == pytest.approx(0.1)
    probe.close()


def test_thread_starts_with_the_first_reading_and_ends_with_the_probe(probe):
    def names():
        return [thread.name for thread in threading.enumerate()]

    assert "evenstep-usage" not in names()
    probe.read()
    assert "evenstep-usage" in names()
    probe.close()
    assert "evenstep-usage" not in names()
    probe.close()


def burn(core, ready, stop):
    os.sched_setaffinity(0, {core})
    ready.set()
    while not stop.is_set():
        sum(range(1000))


def busy(seconds):
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        np.random.random(1000).sum()


@pytest.mark.skipif(
    not Path("/proc/self/schedstat").is_file(), reason="the kernel keeps no account of waiting"
)
@pytest.mark.timeout(60)
def test_competing_process_on_the_same_core_takes_its_share():
    before = os.sched_getaffinity(0)
    core = min(before)
    context = multiprocessing.get_context("spawn")
    ready, stop = context.Event(), context.Event()
    rival = context.Process(target=burn, args=(core, ready, stop), daemon=True)
    probe = UsageProbe(window=0.2)
    try:
        os.sched_setaffinity(0, {core})
        probe.read()
        busy(0.6)
        alone = probe.read().cpu
        rival.start()
        assert ready.wait(30)
        probe.read()
        busy(1.0)
        together = probe.read().cpu
    finally:
        os.sched_setaffinity(0, before)
        stop.set()
        probe.close()
        rival.join(10)
        rival.kill()
    assert together <= 0.65
    # On a busy machine others compete before the rival does.
    assert together <= max(0.8 * alone, 0.3)
