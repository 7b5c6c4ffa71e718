"""A load takes the requested share of a core, holds memory, and leaves nothing behind."""

import os
import time

import psutil
import pytest

from evenstep.errors import EvenstepError, InvalidSetting
from evenstep.measure.usage import UsageProbe
from evenstep.simulator.load.load import Load

MIB = 1 << 20
CORE = min(os.sched_getaffinity(0))


def measure(load, seconds):
    """Return the shares of a core that a load had and waited for in the next seconds."""
    before = load.read()
    time.sleep(seconds)
    after = load.read()
    lasted = after.at - before.at
    return (after.running - before.running) / lasted, (after.waiting - before.waiting) / lasted


def children():
    return {child.pid for child in psutil.Process().children(recursive=True)}


@pytest.mark.parametrize("share", [0.15, 0.6])
def test_the_share_is_used_or_waited_for(share):
    with Load([CORE], most=share) as load:
        load.set(share, 0)
        time.sleep(0.1)
        got, waited = measure(load, 1.5)
    if waited > 2 * share:
        pytest.skip(f"this machine is too busy: a share of {waited:.2f} was waited for")
    assert got < share + 0.08
    assert got + waited > share - 0.08


def test_without_a_share_it_does_nothing():
    with Load([CORE]) as load:
        load.set(0.5, 0)
        load.set(0.0, 0)
        time.sleep(0.1)
        got, _ = measure(load, 0.5)
    assert got < 0.05


def test_memory_is_resident_and_released():
    with Load([CORE], most=0.1) as load:
        assert load.held() == 0
        for wanted in (64 * MIB, 16 * MIB, 0):
            load.set(0.0, wanted)
            deadline = time.monotonic() + 20
            while load.held() != wanted and time.monotonic() < deadline:
                time.sleep(0.02)
            assert load.held() == wanted


def test_all_processes_are_gone_at_the_end():
    before = children()
    with Load([CORE], most=0.7) as load:
        # Three for the CPU: one more process has a quarter then; and one for memory.
        assert len(children() - before) == load.num_processes == 4
        load.set(0.7, 8 * MIB)
    assert children() == before
    load.close()


def test_all_processes_are_gone_after_an_error():
    before = children()
    with pytest.raises(RuntimeError), Load([CORE]) as load:
        load.set(0.5, 0)
        raise RuntimeError
    assert children() == before


def test_the_end_of_a_process_is_noticed():
    before = children()
    with pytest.raises(EvenstepError, match="was ended from outside"), Load([CORE], 0.1) as load:
        for pid in children() - before:
            psutil.Process(pid).kill()
            psutil.wait_procs([psutil.Process(pid)], timeout=0.2)
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            load.set(0.1, 0)
            time.sleep(0.01)
    assert children() == before


@pytest.mark.parametrize(
    ("cores", "message"),
    [
        ([], r"cores must be given, and each once, got \[\]"),
        ([CORE, CORE], r"cores must be given, and each once"),
        ([9999], r"cores must be of those that may be used \(.*\), got 9999"),
    ],
)
def test_wrong_cores_are_refused(cores, message):
    with pytest.raises(InvalidSetting, match=message):
        Load(cores)


def measure_cpu(seconds):
    """Return c as a worker that is busy all the time measures it."""
    probe = UsageProbe()
    readings = []
    deadline = time.perf_counter() + seconds
    while time.perf_counter() < deadline:
        soon = time.perf_counter() + 0.05
        while time.perf_counter() < soon:
            pass
        readings.append(probe.read().cpu)
    probe.close()
    return sum(readings) / len(readings)


def test_a_worker_on_the_core_measures_what_is_left():
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {CORE})
    try:
        alone = measure_cpu(1.0)
        if alone < 0.8:
            pytest.skip(f"this machine is too busy: a worker has {alone:.2f} of a core at best")
        with Load([CORE], most=0.6) as load:
            load.set(0.6, 0)
            contended = measure_cpu(1.5)
    finally:
        os.sched_setaffinity(0, cores)
    assert contended < alone - 0.3
