"""Peak memory of this process, as a share of what it may use."""

import pytest

from evenstep.measure import memory
from evenstep.measure.cgroups import MemoryLimit
from evenstep.measure.memory import HostMemory

MB = 1_000_000


@pytest.fixture
def available(monkeypatch):
    """Set the bytes that the machine has left."""
    left = [1000 * MB]
    monkeypatch.setattr(memory, "available_memory", lambda limit: left[-1])
    return left


def write_status(path, peak_kb, now_kb):
    path.write_text(f"Name:\tpython\nVmHWM:\t  {peak_kb} kB\nVmRSS:\t  {now_kb} kB\n")


def test_peak_is_measured_against_what_the_process_has_and_what_is_left(tmp_path, available):
    status, clear = tmp_path / "status", tmp_path / "clear"
    write_status(status, peak_kb=600, now_kb=500)
    host = HostMemory(status, clear)
    available.append(500 * 1024)
    assert host.read() == pytest.approx(0.6)
    # The next peak is counted from here.
    assert clear.read_text() == "5"
    available.append(0)
    assert host.read() == 1.0


def test_without_an_account_nothing_is_known(tmp_path):
    assert HostMemory(tmp_path / "status", tmp_path / "clear").read() is None


def test_group_bounds_what_is_left(tmp_path):
    used = tmp_path / "used"
    used.write_text("900\n")
    limit = MemoryLimit(1000, used)
    assert memory.available_memory(limit) == 100
    used.write_text("1100\n")
    assert memory.available_memory(limit) == 0
    assert memory.available_memory(None) > 1000


@pytest.mark.skipif(HostMemory().read() is None, reason="the kernel reports no peak")
def test_a_real_peak_shows_once(available):
    host = HostMemory()
    before = host.read() or 0.0
    much = b"x" * (300 * MB)
    assert len(much) == 300 * MB
    del much
    at_peak, after = host.read() or 0.0, host.read() or 1.0
    assert at_peak > before + 0.1
    assert after < at_peak - 0.1
