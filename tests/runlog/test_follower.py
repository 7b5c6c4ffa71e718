"""Run logs that are followed: growing, replaced, damaged, and too long to be read whole."""

import pytest

from evenstep.errors import RunLogError
from evenstep.runlog import Event, Header, IterationRow, Record, follower, skimming
from evenstep.runlog.follower import FileFollower
from tests.runlog.examples import header, row, text_of


def read_all(following: FileFollower) -> list[Record]:
    records: list[Record] = []
    for _ in range(10_000):
        records += following.poll()
        if not following.behind:
            return records
    raise AssertionError("a file that does not grow must come to an end")


def iterations(records):
    return [record.iteration for record in records if isinstance(record, IterationRow)]


def test_a_file_is_followed_while_it_grows(tmp_path):
    path = tmp_path / "run.jsonl"
    text = text_of(header(), *(row(k) for k in range(50)), Event("end", 50))
    following = FileFollower(path, skims=True)
    assert following.poll() == []
    assert following.header is None
    assert following.problem == f"{path} is not there yet"
    assert following.progress == 0.0
    seen: list[Record] = []
    for end in (10, len(text) // 2, len(text) // 2 + 7, len(text)):
        path.write_text(text[:end])
        seen += read_all(following)
        assert (following.header is None) == (end == 10)
    assert iterations(seen) == list(range(50))
    assert isinstance(seen[0], Header)
    assert seen[-1] == Event("end", 50)
    assert (following.progress, following.every) == (1.0, 1)
    assert not following.problem


def test_a_file_is_read_a_piece_at_a_time(tmp_path):
    path = tmp_path / "run.jsonl"
    path.write_text(text_of(header(), *(row(k) for k in range(8)), Event("end", 8)))
    following = FileFollower(path, piece=100)
    pieces = [following.poll()]
    while following.behind:
        pieces.append(following.poll())
    assert len(pieces) == -(-path.stat().st_size // 100)
    assert sum(map(len, pieces)) == 10


@pytest.mark.parametrize("shorter", [True, False])
def test_another_file_under_the_same_name_is_another_run(tmp_path, shorter):
    path, other = tmp_path / "run.jsonl", tmp_path / "other"
    path.write_text(text_of(header(job="first"), *(row(k) for k in range(4))))
    following = FileFollower(path)
    assert iterations(read_all(following)) == [0, 1, 2, 3]
    length = 2 if shorter else 6
    other.write_text(text_of(header(job="second"), *(row(k) for k in range(length))))
    if shorter:
        path.write_bytes(other.read_bytes())
    else:
        other.replace(path)
    records = read_all(following)
    assert isinstance(records[0], Header) and records[0].job == "second"
    assert iterations(records) == list(range(length))


def test_damage_is_raised_after_what_came_before_it_until_there_is_another_file(tmp_path):
    path = tmp_path / "run.jsonl"
    path.write_text(text_of(header(), row(0), row(1)) + "{broken\n")
    following = FileFollower(path)
    assert iterations(following.poll()) == [0, 1]
    for more in ("", "more\n"):
        with path.open("a") as file:
            file.write(more)
        with pytest.raises(RunLogError, match=r"run\.jsonl, line 4"):
            following.poll()
        assert not following.behind
    path.write_text(text_of(header(), row(0)))
    assert iterations(following.poll()) == [0]


def test_a_long_log_is_skimmed_but_for_its_end_and_its_members(tmp_path, monkeypatch):
    # Logs of a few kilobytes count as long.
    monkeypatch.setattr(skimming, "WHOLE", 8_000)
    monkeypatch.setattr(skimming, "TAIL", 2_000)
    monkeypatch.setattr(follower, "SKIMMED_PIECE", 777)
    path = tmp_path / "run.jsonl"
    records: list[Record] = [
        *(row(k) for k in range(400)),
        Event("leave", 400, worker="w0", workers=["w1"], reason="gone"),
        *(row(k, [32], [0.4]) for k in range(400, 1000)),
        Event("end", 1000),
    ]
    plans = [Event("plan", k, plan=k, batch_sizes=[8, 24]) for k in range(300)]
    path.write_text(text_of(header(), *plans, *records))
    following = FileFollower(path, piece=333, skims=True)
    read = read_all(following)
    assert following.every > 5
    rows = iterations(read)
    assert 20 < len(rows) < 300
    assert rows[-20:] == list(range(980, 1000))
    kinds = [record.kind for record in read if isinstance(record, Event)]
    assert kinds[-2:] == ["leave", "end"]
    assert len(kinds) < 100
    assert len(iterations(read_all(FileFollower(path)))) == 1000


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
