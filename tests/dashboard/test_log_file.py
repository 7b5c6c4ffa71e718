"""Run logs that are followed: growing, replaced, damaged, and too long to be read whole."""

import pytest

from evenstep.dashboard import log_file, skimming
from evenstep.dashboard.log_file import LogFile
from evenstep.runlog import Event, Record
from tests.runlog.examples import header, row, text_of


def read_all(log: LogFile) -> None:
    for _ in range(10_000):
        if not log.poll():
            return
    raise AssertionError("a file that does not grow must come to an end")


def test_a_file_is_followed_while_it_grows(tmp_path):
    path = tmp_path / "run.jsonl"
    text = text_of(header(), *(row(k) for k in range(50)), Event("end", 50))
    log = LogFile(path)
    assert log.poll() is False
    assert log.job is None
    seen: list[int | None] = []
    for end in (10, len(text) // 2, len(text) // 2 + 7, len(text)):
        path.write_text(text[:end])
        read_all(log)
        seen.append(None if log.job is None else log.job.num_iterations)
    assert seen[0] is None
    assert seen[-1] == 50
    assert log.job is not None
    assert log.job.end is not None
    assert (log.progress, log.every) == (1.0, 1)


def test_another_file_under_the_same_name_is_another_run(tmp_path):
    path = tmp_path / "run.jsonl"
    path.write_text(text_of(header(job="first"), row(0), row(1)))
    log = LogFile(path)
    read_all(log)
    first = log.run
    other = tmp_path / "other"
    other.write_text(text_of(header(job="second"), row(0), row(1), row(2)))
    other.replace(path)
    read_all(log)
    assert log.run > first
    assert log.job is not None
    assert (log.job.header.job, log.job.num_iterations) == ("second", 3)


def test_damage_is_told_and_what_came_before_it_stays(tmp_path):
    path = tmp_path / "run.jsonl"
    path.write_text(text_of(header(), row(0), row(1)) + "{broken\n")
    log = LogFile(path)
    read_all(log)
    assert log.job is not None
    assert log.job.num_iterations == 2
    assert "run.jsonl, line 4" in (log.job.problem or "")
    with path.open("a") as file:
        file.write("more\n")
    read_all(log)
    assert log.job.num_iterations == 2


@pytest.fixture
def short(monkeypatch):
    """Make logs of a few kilobytes count as long."""
    monkeypatch.setattr(skimming, "WHOLE", 8_000)
    monkeypatch.setattr(skimming, "TAIL", 2_000)
    monkeypatch.setattr(log_file, "SKIMMED_PIECE", 777)
    monkeypatch.setattr(log_file, "PIECE", 333)


def test_a_long_log_is_skimmed_but_for_its_end_and_its_members(tmp_path, short):
    path = tmp_path / "run.jsonl"
    records: list[Record] = [
        *(row(k) for k in range(400)),
        Event("leave", 400, worker="w0", workers=["w1"], reason="gone"),
        *(row(k, [32], [0.4]) for k in range(400, 1000)),
        Event("end", 1000),
    ]
    plans = [Event("plan", k, plan=k, batch_sizes=[8, 24]) for k in range(300)]
    path.write_text(text_of(header(), *plans, *records))
    log = LogFile(path)
    read_all(log)
    assert log.job is not None
    assert log.job.problem is None
    assert log.every > 5
    assert 20 < log.job.num_iterations < 300
    assert log.job.workers == ("w1",)
    recent = [one.row.iteration for one in log.job.recent]
    assert recent[-20:] == list(range(980, 1000))
    assert log.job.end is not None
    kinds = [told.event.kind for told in log.job.events]
    assert kinds[-2:] == ["leave", "end"]
    assert len(kinds) < 100


def test_skimming_passes_on_whole_lines_wherever_the_pieces_end():
    text = text_of(header(), *(row(k) for k in range(40)), Event("note", 40, text="x")).encode()
    lines = set(text.splitlines(keepends=True))
    for size in (1, 5, 64, 1000):
        skimmer = skimming.Skimmer(every=4)
        passed = b"".join(
            skimmer.pass_on(text[i : i + size]) for i in range(0, len(text), size)
        ).splitlines(keepends=True)
        assert set(passed) <= lines
        assert passed[0].startswith(b'{"evenstep_run_log"')
        assert passed[-1].startswith(b'{"event":"note"')
        assert 8 <= len(passed) <= 16
