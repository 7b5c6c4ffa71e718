"""Reports are checked when they are made: values that cannot be true are refused."""

from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from evenstep.core import UNLIMITED, Report, Reports, Usage
from evenstep.errors import EvenstepError, InvalidReport, MembershipError

NAN, INF = float("nan"), float("inf")
NOT_NUMBERS = [True, False, "0.5", None, [0.5], 1j]


def report(**changes: Any) -> Report:
    usual: dict[str, Any] = {"worker": "w0", "iteration": 7}
    usual |= {"batch_size": 32, "batch_processing_time": 0.5}
    return Report(**{**usual, **changes})


def reports(**changes: Any) -> Reports:
    usual = Reports(
        iteration=1,
        batch_sizes=np.array([8, 0, 24]),
        times=np.array([0.1, NAN, 0.3]),
        cpu=np.array([0.0, 0.5, 1.0]),
        memory=np.array([1.0, 0.5, 0.0]),
        device_memory=np.array([0.2, NAN, 1.0]),
    )
    return replace(usual, **changes)


def message_of(make) -> str:
    with pytest.raises(InvalidReport) as caught:
        make()
    assert isinstance(caught.value, EvenstepError)
    assert isinstance(caught.value, ValueError)
    return str(caught.value)


@pytest.mark.parametrize("time", [NAN, INF, -INF, -0.5, 0, 0.0, 10**400, True, "0.5", [0.5], 1j])
def test_a_time_that_cannot_be_true_is_refused(time):
    assert message_of(lambda: report(batch_processing_time=time)) == (
        f"batch processing time of worker w0 must be from 1e-09 to 1e+09 s, got {time!r}"
    )


@pytest.mark.parametrize("size", [-5, 0, 2**53 + 1, 2**70, 2.5, 32.0, NAN, INF, True, "32", [32]])
def test_a_batch_size_that_cannot_be_true_is_refused(size):
    assert message_of(lambda: report(batch_size=size)) == (
        "batch size of worker w0 must be an integer from 1 to 2^53 (or None with no time), "
        f"got {size!r}"
    )


@pytest.mark.parametrize("iteration", [-1, 2**70, 1.0, NAN, None, True, "7"])
def test_an_iteration_that_cannot_be_is_refused(iteration):
    assert message_of(lambda: report(iteration=iteration)) == (
        f"iteration of worker w0 must be an integer from 0 to 2^53, got {iteration!r}"
    )


@pytest.mark.parametrize("worker", ["", None, 3, b"w0"])
def test_a_worker_without_a_name_is_refused(worker):
    assert message_of(lambda: report(worker=worker)) == (
        f"worker must be a non-empty name, got {worker!r}"
    )


@pytest.mark.parametrize(("size", "time"), [(32, None), (None, 0.5), (0, None)])
def test_a_size_without_a_time_or_a_time_without_a_size_is_refused(size, time):
    assert message_of(lambda: report(batch_size=size, batch_processing_time=time)) == (
        "batch size and batch processing time of worker w0 must come together, "
        f"got {size!r} and {time!r}"
    )


@pytest.mark.parametrize("name", ["cpu", "memory", "device_memory"])
@pytest.mark.parametrize("share", [NAN, INF, -0.01, 1.01, 10**400, *NOT_NUMBERS])
def test_a_usage_that_is_no_fraction_is_refused(name, share):
    if share is None and name == "device_memory":
        assert Usage(device_memory=None) == Usage(1.0, 1.0, None)
        return
    assert message_of(lambda: Usage(**{name: share})) == (
        f"usage {name} must be a fraction from 0 to 1, got {share!r}"
    )


def test_all_kinds_of_numbers_are_taken():
    usage: Any = Usage(np.int8(0), Fraction(1), 0.5)  # type: ignore[arg-type]
    numpys = report(
        iteration=np.int64(7),
        batch_size=np.int32(32),
        batch_processing_time=np.float32(0.5),
        usage=usage,
    )
    assert numpys == Report("w0", 7, 32, 0.5, Usage(0, 1, 0.5))


def test_a_worker_without_samples_reports_its_usage_only():
    only_usage = report(batch_size=None, batch_processing_time=None)
    assert only_usage == Report("w0", 7, None, None, Usage(cpu=1.0, memory=1.0))


def test_gathered_reports_are_in_the_order_of_the_workers():
    single = {
        "a": Report("a", 3, 8, 0.1, Usage(0.5, 0.6, 0.7)),
        "b": Report("b", 3),
        "c": Report("c", 3, 24, 0.3, Usage(0.1, 0.2)),
    }
    gathered = Reports.gather(single, ["c", "a", "b"])
    assert gathered.iteration == 3
    assert gathered.num_workers == 3
    assert gathered.batch_sizes.tolist() == [24, 8, 0]
    assert gathered.batch_sizes.dtype == np.int64
    np.testing.assert_array_equal(gathered.times, [0.3, 0.1, NAN])
    assert gathered.observed.tolist() == [True, True, False]
    assert gathered.cpu.tolist() == [0.1, 0.5, 1.0]
    assert gathered.memory.tolist() == [0.2, 0.6, 1.0]
    np.testing.assert_array_equal(gathered.device_memory, [NAN, 0.7, NAN])
    gathered.check()


def test_caps_are_gathered_where_a_worker_has_one():
    reports = {"a": Report("a", 3, cap=40), "b": Report("b", 3)}
    caps = Reports.gather(reports, ["b", "a"]).caps
    assert caps is not None and caps.tolist() == [UNLIMITED, 40]
    assert Reports.gather({"b": Report("b", 3)}, ["b"]).caps is None


@pytest.mark.parametrize("cap", [-1, 1.5, True, 2**60])
def test_a_cap_that_cannot_be_true_is_refused(cap):
    with pytest.raises(InvalidReport, match=rf"cap of worker a .*{cap!r}$"):
        Report("a", 3, cap=cap)


def test_an_unknown_worker_is_refused():
    with pytest.raises(MembershipError) as caught:
        Reports.gather({w: Report(w, 0) for w in ("a", "b", "z")}, ["a", "b"])
    assert str(caught.value).startswith("worker z ") and str(caught.value).endswith(": a, b")


def test_a_missing_worker_is_named():
    assert message_of(lambda: Reports.gather({"a": Report("a", 0)}, ["a", "b", "c"])) == (
        "every worker must report, nothing came from b"
    )


def test_reports_of_different_boundaries_are_not_mixed():
    single = {"a": Report("a", 4), "b": Report("b", 3)}
    assert message_of(lambda: Reports.gather(single, ["a", "b"])) == (
        "reports must be of one boundary, got iterations [3, 4]"
    )


def test_silent_workers_have_nothing_to_tell():
    silent = Reports.silent(5, 2)
    silent.check()
    assert (silent.iteration, silent.num_workers) == (5, 2)
    assert silent.batch_sizes.tolist() == [0, 0]
    assert silent.observed.tolist() == [False, False]
    assert (silent.cpu.tolist(), silent.memory.tolist()) == ([1.0, 1.0], [1.0, 1.0])
    np.testing.assert_array_equal(silent.device_memory, [NAN, NAN])


def test_arrays_that_can_be_true_pass():
    reports().check()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch_sizes": np.array([8, 0, -24])}, "batch size must be >= 0, got -24 for worker 2"),
        (
            {"batch_sizes": np.array([0, 0, 24])},
            "a time must come with a batch size > 0, got 0.1 for worker 0",
        ),
        (
            {"times": np.array([0.1, NAN, NAN])},
            "a time must come with a batch size > 0, got nan for worker 2",
        ),
        (
            {"times": np.array([0.0, NAN, 0.3])},
            "batch processing time must be from 1e-09 to 1e+09 s, got 0.0 for worker 0",
        ),
        (
            {"times": np.array([0.1, NAN, -0.3])},
            "batch processing time must be from 1e-09 to 1e+09 s, got -0.3 for worker 2",
        ),
        (
            {"times": np.array([INF, NAN, 0.3])},
            "batch processing time must be from 1e-09 to 1e+09 s, got inf for worker 0",
        ),
        (
            {"cpu": np.array([1.0, NAN, 1.0])},
            "usage cpu must be a fraction from 0 to 1, got nan for worker 1",
        ),
        (
            {"cpu": np.array([1.0, 1.0, 1.5])},
            "usage cpu must be a fraction from 0 to 1, got 1.5 for worker 2",
        ),
        (
            {"memory": np.array([-0.5, 1.0, 1.0])},
            "usage memory must be a fraction from 0 to 1, got -0.5 for worker 0",
        ),
        (
            {"memory": np.array([NAN, 1.0, 1.0])},
            "usage memory must be a fraction from 0 to 1, got nan for worker 0",
        ),
        (
            {"device_memory": np.array([0.5, 1.5, 0.5])},
            "usage device_memory must be a fraction from 0 to 1 or NaN, got 1.5 for worker 1",
        ),
        (
            {"device_memory": np.array([0.5, 0.5, -0.5])},
            "usage device_memory must be a fraction from 0 to 1 or NaN, got -0.5 for worker 2",
        ),
        ({"times": np.ones(2)}, "times must have one entry per worker (3), got (2,)"),
        ({"cpu": np.ones(4)}, "cpu must have one entry per worker (3), got (4,)"),
        ({"memory": np.ones((3, 1))}, "memory must have one entry per worker (3), got (3, 1)"),
        ({"speeds": np.ones(2)}, "speeds must have one entry per worker (3), got (2,)"),
        (
            {"device_memory": np.ones(1)},
            "device_memory must have one entry per worker (3), got (1,)",
        ),
    ],
)
def test_arrays_that_cannot_be_true_are_refused(changes, message):
    assert message_of(reports(**changes).check) == message


@pytest.mark.parametrize("speed", [NAN, INF, 0.0, -1.0])
def test_a_predicted_speed_that_cannot_be_true_is_refused(speed):
    bad = reports(speeds=np.array([10.0, speed, 10.0]))
    assert message_of(bad.check) == (
        f"predicted speed must be finite and > 0, got {speed} for worker 1"
    )
