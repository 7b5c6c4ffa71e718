"""Jobs and their views: what the page is told is what the log says."""

import json
import math

import numpy as np
import pytest

from evenstep.core import UNLIMITED
from evenstep.insight.dashboard import view
from evenstep.insight.dashboard.job import MOST_EVENTS, DashboardJob, num_recent
from evenstep.runlog import Event
from tests.runlog.examples import full_row, header, row

HOSTILE = "<script>alert(1)</script>\u202e\n"


def job_of(*records, **changes) -> DashboardJob:
    job = DashboardJob(header(**changes))
    job.take(records)
    return job


def test_the_newest_iteration_is_told_as_the_log_has_it():
    newest = full_row(12, 2)
    told = view.now(job_of(full_row(11, 2), newest))
    assert told["iteration"] == 12
    assert told["iteration_time"] == pytest.approx(newest.iteration_time, rel=1e-6)
    last = told["last"]
    assert last["batch_sizes"] == newest.batch_sizes.tolist()
    assert last["times"] == pytest.approx(newest.times.tolist(), rel=1e-6)
    assert last["predicted_speeds"] == pytest.approx(newest.predicted_speeds, rel=1e-6)
    assert last["cpu"] == pytest.approx(newest.cpu, rel=1e-6)
    assert newest.waiting is not None and newest.caps is not None
    share = newest.waiting.sum() / (newest.waiting + newest.times).sum()
    assert last["caps"] == newest.caps.tolist()
    assert told["waiting_share"] == pytest.approx(share, rel=1e-6)


def test_unknown_is_null_and_everything_is_json():
    job = job_of(row(0, [8, 0], [0.2, math.nan], caps=[16, UNLIMITED]))
    told = json.loads(json.dumps(view.now(job), allow_nan=False))
    assert told["last"]["times"] == [0.2, None]
    assert told["last"]["caps"] == [16, None]
    assert told["last"]["cpu"] is None
    assert told["figures"]["plain"] is None
    json.dumps(view.history(job, 0), allow_nan=False)


def test_a_job_without_iterations_can_be_told_of():
    job = job_of()
    assert view.now(job)["iteration"] is None
    assert view.history(job, 0)["iterations"] == []
    assert view.slowest(job) == 0


def test_only_what_is_new_is_told():
    job = job_of(row(0), Event("note", 1, text="a"), row(1), Event("note", 2, text="b"))
    told = view.now(job, rows_from=1, events_from=1)
    assert [one["iteration"] for one in told["rows"]] == [1]
    assert [one["words"] for one in told["events"]] == ["b"]


def test_waiting_that_nobody_recorded_is_what_is_missing_to_the_longest():
    told = view.now(job_of(row(0, [8, 24], [0.2, 0.5])))
    assert told["last"]["waiting"] == [0.3, 0.0]


def test_who_leaves_keeps_the_place_and_who_joins_gets_the_next():
    job = job_of(
        row(0, [8, 24], [0.2, 0.3]),
        Event("leave", 1, worker="w0", workers=["w1"]),
        row(1, [32], [0.4]),
        Event("join", 2, worker="w2", workers=["w1", "w2"]),
        row(2, [16, 16], [0.2, 0.1]),
    )
    assert view.about(job)["workers"] == ["w0", "w1", "w2"]
    told = view.now(job)
    assert told["present"] == [1, 2]
    assert [one["batch_sizes"] for one in told["rows"]] == [
        [8, 24, None],
        [None, 32, None],
        [None, 16, 16],
    ]
    lines = view.history(job, 1)["batch_sizes"]["lines"]
    assert lines == {0: [8, None, None], 1: [24, 32, 16], 2: [None, None, 16]}


def test_of_many_workers_bands_and_the_chosen_one_are_told():
    workers = [f"w{i}" for i in range(50)]
    sizes = np.arange(50)
    job = DashboardJob(header(workers=workers))
    job.take([row(0, sizes, np.ones(50))])
    told = view.history(job, 7)["batch_sizes"]
    assert told["lines"] == {7: [7]}
    assert [band[0] for band in told["bands"]] == pytest.approx([2.45, 12.25, 24.5, 36.75, 46.55])


def test_figures_are_those_of_the_second_half():
    # Even sizes of unequal workers at first, then balanced ones.
    first = [row(k, [16, 16, 16], [0.1, 0.2, 0.4]) for k in range(10)]
    then = [row(k, [27, 14, 7], [0.16875, 0.175, 0.175]) for k in range(10, 30)]
    told = view.figures(job_of(*first, *then, workers=("w0", "w1", "w2"), total=48, policy="own"))
    assert told["window"] == "iterations 15 to 29, the second half"
    assert told["iteration_time"] == pytest.approx(0.175)
    assert told["plain"]["value"] == pytest.approx(0.4, rel=0.01)
    assert told["gain"]["value"] == pytest.approx(0.4 / 0.175, rel=0.01)
    assert told["gain"]["low"] < told["gain"]["value"] < told["gain"]["high"]
    assert told["waiting_share"] == pytest.approx(0.00625 / 0.525, rel=1e-3)
    assert told["straggler"] == {"worker": 2, "slowdown": pytest.approx(2.0, rel=0.02)}
    assert told["sentence"].startswith(
        "Straggler: w2, 2.0 times slower than the median worker. Waiting 1.2%. 2.2"
    )


def test_the_second_half_is_that_of_the_iterations_also_if_some_are_left_out():
    skimmed = [row(k, [16, 16], [0.3, 0.3]) for k in range(0, 100, 10)]
    end = [row(k, [16, 16], [0.2, 0.2]) for k in range(100, 120)]
    assert view.figures(job_of(*skimmed, *end))["window"].startswith("iterations 60 to 119, ")


def test_figures_of_nothing_and_of_equal_workers_claim_nothing():
    nothing = view.figures(job_of())
    assert nothing.pop("window") == "no iteration yet"
    assert nothing.pop("sentence") == "No iteration has a known time yet."
    assert nothing.pop("slowdowns") == []
    assert set(nothing.values()) == {None}
    equal = view.figures(job_of(*(row(k, [16, 16], [0.2, 0.2]) for k in range(9))))
    assert equal["straggler"] is None
    assert equal["sentence"].startswith("No straggler: ")
    assert equal["sentence"].endswith("Sizes of plain BSP; balancing would gain little.")


def test_the_straggler_is_one_of_the_present_workers():
    job = job_of(
        *(row(k, [8, 8, 8], [0.1, 0.2, 0.8]) for k in range(4)),
        Event("leave", 4, worker="w2", workers=["w0", "w1"]),
        *(row(k, [12, 12], [0.15, 0.3]) for k in range(4, 12)),
        workers=("w0", "w1", "w2"),
    )
    assert view.slowest(job) == 1
    assert view.now(job)["last"]["slowdowns"][2] is None


@pytest.mark.parametrize(
    ("times", "late"),
    [
        ([0.100, 0.101], None),
        ([0.100, 0.120], 1),
        ([0.120, 0.100], 0),
        ([math.nan, 0.1], None),
        ([math.nan, math.nan], None),
    ],
)
def test_a_worker_is_late_only_if_the_others_lose_by_it(times, late):
    (told,) = view.now(job_of(row(0, [16, 16], times)))["rows"]
    assert told["late"] == late


def test_a_second_run_has_the_sizes_of_the_worker_of_that_name():
    job = job_of(row(3, [8, 24], [0.2, 0.3]), workers=("a", "b"))
    told = view.overlay(job, "b")
    assert (told["iterations"], told["iteration_times"]) == ([3], [0.3])
    assert told["batch_sizes"] == [24]
    assert view.overlay(job, "c")["batch_sizes"] is None


def test_nothing_grows_with_the_length_of_a_run():
    job = job_of(*(row(k) for k in range(2000)), *(Event("note", 2000, text="x"),) * 1000)
    assert len(job.recent) == num_recent(2)
    assert len(job.events) == MOST_EVENTS
    assert (job.num_iterations, job.num_events) == (2000, 1000)
    assert len(json.dumps(view.history(job, 0))) < 100_000


def test_200_workers_and_a_long_run_fit_into_little_json():
    job = DashboardJob(header(workers=[f"w{i}" for i in range(200)]))
    job.take([full_row(k, 200) for k in range(600)])
    assert len(json.dumps(view.now(job))) < 150_000
    assert len(json.dumps(view.now(job, rows_from=599))) < 30_000
    assert len(json.dumps(view.history(job, 3))) < 100_000


def test_names_come_as_text_that_can_be_shown():
    event = Event("leave", 1, worker=HOSTILE, workers=["w1"], reason="\x1b[31m" + "x" * 1000)
    job = DashboardJob(header(workers=(HOSTILE, "w1"), job="\u202ejob"))
    job.take([event])
    assert view.about(job)["workers"][0] == "<script>alert(1)</script>??"
    assert view.about(job)["job"] == "?job"
    words = view.now(job)["events"][0]["words"]
    assert words.startswith("?[31m")
    assert len(words) == view.LONGEST_TEXT


@pytest.mark.parametrize("times", [[1e308, 1e-308], [-1.0, 0.0], [math.nan, math.nan]])
def test_times_that_no_clock_gives_harm_nothing(times):
    job = job_of(*(row(k, [8, 24], times) for k in range(10)))
    json.dumps(view.now(job), allow_nan=False)
    json.dumps(view.history(job, 0), allow_nan=False)


def test_estimates_are_of_the_workers_that_are_there():
    job = job_of(
        *(row(k, [16, 16], [0.16, 0.32]) for k in range(6)),
        Event("leave", 6, worker="w1", workers=["w0"]),
        *(row(k, [32], [0.32]) for k in range(6, 12)),
    )
    estimates = job.estimates()
    assert estimates is not None
    assert estimates.plain.value == estimates.optimum.value == pytest.approx(0.32)


@pytest.mark.timeout(10)
def test_a_total_that_no_job_has_keeps_nobody_waiting():
    job = DashboardJob(header(total=2**53))
    job.take(row(k, [2**52, 2**52], [0.1, 0.2]) for k in range(10))
    assert view.now(job)["figures"]["optimum"] is None
