"""CPU accounts: of this process's threads, or else of pressure."""

import threading
import time
from pathlib import Path

import pytest

from evenstep.measure.accounts import NoAccount, PressureAccount, ThreadAccounts, open_account


def tell(tasks, thread, running, waiting):
    folder = tasks / thread
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "schedstat").write_text(f"{running} {waiting} 7\n")


def lose(tasks, thread):
    # A file that stays open can be read on, as a real account cannot: leave it empty.
    (tasks / thread / "schedstat").write_text("")


@pytest.fixture
def tasks(tmp_path):
    folder = tmp_path / "task"
    folder.mkdir()
    return folder


def times(account):
    read = account.read()
    return read.running, read.waiting


def test_threads_are_added_up_from_when_they_were_found(tasks):
    tell(tasks, "1", 5 * 10**9, 10**9)
    tell(tasks, "2", 10**9, 0)
    account = ThreadAccounts(tasks)
    assert times(account) == (0, 0)
    tell(tasks, "1", 6 * 10**9, 3 * 10**9)
    tell(tasks, "2", 3 * 10**9, 0)
    assert times(account) == (3, 2)


def test_a_thread_that_comes_counts_from_then_on(tasks):
    tell(tasks, "1", 0, 0)
    account = ThreadAccounts(tasks)
    tell(tasks, "2", 9 * 10**9, 9 * 10**9)
    account.refresh()
    assert times(account) == (0, 0)
    tell(tasks, "2", 10 * 10**9, 9 * 10**9)
    assert times(account) == (1, 0)


def test_what_a_thread_had_is_kept_when_it_ends(tasks):
    tell(tasks, "1", 0, 0)
    tell(tasks, "2", 0, 0)
    account = ThreadAccounts(tasks)
    tell(tasks, "2", 2 * 10**9, 10**9)
    assert times(account) == (2, 1)
    lose(tasks, "2")
    tell(tasks, "1", 10**9, 0)
    assert times(account) == (3, 1)
    assert len(account) == 1


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="Linux only")
def test_own_threads_are_counted_and_their_files_closed():
    files = len(list(Path("/proc/self/fd").iterdir()))
    account = open_account()
    stop = threading.Event()
    thread = threading.Thread(target=lambda: [sum(range(1000)) for _ in iter(stop.is_set, True)])
    thread.start()
    account.refresh()
    before = account.read().running
    time.sleep(0.2)
    assert account.read().running > before
    stop.set()
    thread.join()
    account.refresh()
    after = account.read().running
    assert after > before
    account.close()
    assert len(list(Path("/proc/self/fd").iterdir())) == files


def test_without_accounts_of_threads_pressure_is_used(tasks, tmp_path):
    pressure = tmp_path / "cpu.pressure"
    pressure.write_text("some avg10=0.00 avg60=0.00 avg300=0.00 total=1000000\n")
    tell(tasks, "1", "no", "accounts")
    account = open_account(tasks, pressure)
    assert isinstance(account, PressureAccount)
    before = account.read()
    time.sleep(0.05)
    pressure.write_text("some avg10=0.00 avg60=0.00 avg300=0.00 total=1020000\nfull total=7\n")
    after = account.read()
    assert after.waiting - before.waiting == pytest.approx(0.02)
    wall = after.at - before.at
    assert after.running - before.running == pytest.approx(wall - 0.02)


def test_without_kernel_accounts_waiting_is_zero(tmp_path, monkeypatch):
    monkeypatch.setattr("evenstep.measure.accounts.cpu_pressure_file", lambda: None)
    account = open_account(tmp_path / "none")
    assert isinstance(account, NoAccount)
    assert account.read().waiting == 0
