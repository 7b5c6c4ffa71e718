"""Folders of run logs: which there are, in which state, and which of them are read."""

import os
import time

import pytest

from evenstep.insight.dashboard.folder import KEPT, RESCAN, SILENT, Folder, LogFile
from evenstep.runlog import Event, skimming
from tests.runlog.examples import header, row, text_of


class Clock:
    def __init__(self, now=1000.0):
        self.now = now

    def __call__(self):
        return self.now


def folder_at(path):
    clock, wall_clock = Clock(), Clock(path.stat().st_mtime)
    return Folder(path, clock, wall_clock), clock, wall_clock


def read_all(folder):
    while folder.poll():
        pass


def write(path, text, age=0.0):
    path.write_text(text)
    changed = path.stat().st_mtime - age
    os.utime(path, (changed, changed))


def test_run_logs_are_listed_the_newest_first_with_their_state(tmp_path):
    write(tmp_path / "old.jsonl", text_of(header(job="old"), row(0)), age=100.0)
    write(tmp_path / "done.jsonl", text_of(header(job="done"), row(0), Event("end", 1)), age=50.0)
    write(tmp_path / "new.jsonl", text_of(header(job="new"), row(0)))
    (tmp_path / "other.jsonl").write_text('{"no": "run log"}\n')
    (tmp_path / "text.txt").write_text(text_of(header()))
    folder, _, _ = folder_at(tmp_path)
    folder.poll()
    assert SILENT < 50
    entries = [(entry.job, entry.place, entry.state) for entry in folder.entries()]
    assert entries == [
        ("new", "new.jsonl", "running"),
        ("done", "done.jsonl", "ended"),
        ("old", "old.jsonl", "silent"),
    ]
    assert folder.problem is None


def test_a_log_that_comes_later_is_found(tmp_path):
    folder, clock, _ = folder_at(tmp_path)
    (tmp_path / "other.jsonl").write_text("{}")
    folder.poll()
    assert folder.entries() == []
    assert folder.problem == (
        f"no run log in the folder {tmp_path} yet; files *.jsonl that do not begin like one: 1"
    )
    assert folder.remedies[-1][1] == f"evenstep simulate G --log {tmp_path}/run.jsonl"
    (tmp_path / "run.jsonl").write_text(text_of(header()))
    clock.now += RESCAN
    folder.poll()
    assert [entry.job for entry in folder.entries()] == ["G"]


def test_only_what_somebody_looks_at_is_read_and_not_for_ever(tmp_path):
    path = tmp_path / "run.jsonl"
    path.write_text(text_of(header(), row(0)))
    folder, clock, _ = folder_at(tmp_path)
    assert folder.poll() is False
    (entry,) = folder.entries()
    reading = folder.read(entry.key)
    assert reading is not None
    assert reading.job.num_iterations == 1
    path.write_text(text_of(header(), row(0), row(1)))
    read_all(folder)
    assert reading.job.num_iterations == 2
    clock.now += KEPT + 1
    time.sleep(0.002)
    folder.poll()
    again = folder.read(entry.key)
    assert again is not None
    assert again.job is not reading.job
    # The page forgets what it knew: a log that has grown long is skimmed, and counts otherwise.
    assert again.run != reading.run


def test_a_log_in_the_place_of_another_is_listed_as_what_it_is(tmp_path):
    path = tmp_path / "run.jsonl"
    path.write_text(text_of(header(job="first"), row(0)))
    folder, clock, _ = folder_at(tmp_path)
    folder.poll()
    other = tmp_path / "other"
    other.write_text(text_of(header(job="second"), row(0), row(1)))
    other.replace(path)
    clock.now += RESCAN
    folder.poll()
    assert [entry.job for entry in folder.entries()] == ["second"]


@pytest.mark.timeout(10)
def test_what_is_no_file_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe.jsonl")
    (tmp_path / "folder.jsonl").mkdir()
    folder, _, _ = folder_at(tmp_path)
    folder.poll()
    assert folder.entries() == []


def test_a_single_file_is_a_folder_of_one(tmp_path):
    path = tmp_path / "run.log"
    path.write_text(text_of(header(), row(0)))
    folder, _, _ = folder_at(path)
    folder.poll()
    assert [entry.place for entry in folder.entries()] == ["run.log"]


def test_a_file_that_is_no_run_log_is_not_called_missing(tmp_path):
    path = tmp_path / "run.jsonl"
    path.write_text("{}\n")
    folder, _, _ = folder_at(path)
    folder.poll()
    assert folder.problem == f"the file {path} does not begin like a run log"
    path.unlink()
    assert folder.problem == f"the file {path} is not there yet"


def test_a_key_that_names_no_log_reads_nothing(tmp_path):
    (tmp_path / "secret.txt").write_text("secret")
    folder, _, _ = folder_at(tmp_path)
    folder.poll()
    for key in ("secret.txt", "../secret.txt", "", "0" * 12):
        assert folder.read(key) is None


def job_of(log: LogFile):
    while log.poll():
        pass
    assert log.reading is not None
    return log.reading.job


def test_a_file_that_grows_is_one_job(tmp_path):
    path = tmp_path / "run.jsonl"
    text = text_of(header(), *(row(k) for k in range(50)), Event("end", 50))
    log = LogFile(path)
    assert log.poll() is False
    assert log.reading is None
    path.write_text(text[:10])
    log.poll()
    assert log.reading is None
    seen: list[int] = []
    for end in (len(text) // 2, len(text) // 2 + 7, len(text)):
        path.write_text(text[:end])
        seen.append(job_of(log).num_iterations)
    assert 0 < seen[0] <= seen[1] < seen[2] == 50
    assert job_of(log).end == Event("end", 50)
    assert log.reading is not None
    assert (log.reading.progress, log.reading.every) == (1.0, 1)


def test_another_file_under_the_same_name_is_another_run(tmp_path):
    path = tmp_path / "run.jsonl"
    path.write_text(text_of(header(job="first"), row(0), row(1)))
    log = LogFile(path)
    job_of(log)
    first = log.run
    other = tmp_path / "other"
    other.write_text(text_of(header(job="second"), row(0), row(1), row(2)))
    other.replace(path)
    job = job_of(log)
    assert log.run > first
    assert (job.header.job, job.num_iterations) == ("second", 3)
    path.write_text("")
    log.poll()
    assert log.reading is None


def test_damage_is_told_and_what_came_before_it_stays(tmp_path):
    path = tmp_path / "run.jsonl"
    path.write_text(text_of(header(), row(0), row(1)) + "{broken\n")
    log = LogFile(path)
    job = job_of(log)
    assert job.num_iterations == 2
    assert "run.jsonl, line 4" in (job.problem or "")
    with path.open("a") as file:
        file.write("more\n")
    assert job_of(log) is job
    assert job.num_iterations == 2


def test_a_long_log_is_skimmed_but_for_its_end_and_its_members(tmp_path, monkeypatch):
    monkeypatch.setattr(skimming, "WHOLE", 8_000)
    monkeypatch.setattr(skimming, "TAIL", 2_000)
    path = tmp_path / "run.jsonl"
    rows = [row(k) for k in range(400)], [row(k, [32], [0.4]) for k in range(400, 1000)]
    leave = Event("leave", 400, worker="w0", workers=["w1"], reason="gone")
    path.write_text(text_of(header(), *rows[0], leave, *rows[1], Event("end", 1000)))
    log = LogFile(path)
    job = job_of(log)
    assert job.problem is None
    assert log.reading is not None and log.reading.every > 5
    assert 20 < job.num_iterations < 300
    assert job.workers == ("w1",)
    assert [one.row.iteration for one in job.recent][-20:] == list(range(980, 1000))
    assert job.end is not None
