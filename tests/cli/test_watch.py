"""``evenstep watch``: following run logs and managers, to the end."""

import json
import re
import threading
import time

import pytest

from evenstep.cli.main import main
from evenstep.cli.watch_view import Watched, WatchView
from evenstep.manager.access import job_token
from evenstep.runlog import Event, RunLogWriter, follower
from evenstep.runlog.follower import FileFollower
from tests.manager.managers import boundary, running
from tests.runlog.examples import header, row, text_of

COMMAND = "watch"


def rows(last=8):
    return [row(k, [16, 16], [0.1, 0.3], waiting=[0.2, 0.0], cpu=[1.0, 0.3]) for k in range(last)]


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "run.jsonl"
    path.write_text(text_of(header(job="mine", source="measured"), *rows(), Event("end", 8)))
    return path


def test_lines_tell_iteration_time_straggler_waiting_and_sizes(printed, log):
    line, end = printed(log).splitlines()
    assert line.startswith("mine (measured): iteration 7, 300 ms now. ")
    assert "Iterations 4 to 7, the second half: 300 ms, about " in line
    assert "Straggler: w1, 1.5 times slower than the median worker. Waiting 33.3%. " in line
    assert "balancing could save " in line and line.endswith(" Batch sizes 16/16.")
    assert end == "The run has ended."


def test_json_has_the_newest_iteration_and_the_settled_figures(capsys, log):
    assert main(["watch", str(log), "--json"]) == 0
    out, err = capsys.readouterr()
    told = json.loads(out)
    assert (told["iteration"], told["batch_sizes"]) == (7, [16, 16])
    assert told["estimates"]["straggler"]["worker"] == "w1"
    assert told["estimates"]["waiting_share"] == pytest.approx(1 / 3)
    assert err == "The run has ended.\n"


def test_table_on_a_terminal_has_waiting_and_cpu_of_every_worker(shown, log):
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown(log))
    for words in ("w0", "w1", "100.0 ms", "200.0 ms", "CPU", "30%", "The run has ended."):
        assert words in text


def test_log_that_grows_is_followed_to_its_end(printed, tmp_path):
    path = tmp_path / "later.jsonl"

    def write():
        time.sleep(0.4)
        with RunLogWriter(path, header(job="mine")) as writer:
            for one in rows():
                writer.iteration(one)
                time.sleep(0.05)
            writer.event(Event("end", 8, reason="done"))

    thread = threading.Thread(target=write)
    thread.start()
    lines = printed(path, "--every", "0.1").splitlines()
    thread.join()
    assert lines[0].endswith("later.jsonl is not there yet") and lines[1] == "it is back"
    assert len([line for line in lines if "iteration" in line]) > 1
    assert lines[-1] == "The run has ended: done."


def test_log_is_read_a_piece_at_a_time(printed, log, monkeypatch):
    whole = printed(log).splitlines()
    monkeypatch.setattr(follower, "PIECE", 100)
    assert printed(log, "--every", "1000").splitlines()[-2:] == whole


@pytest.mark.parametrize("shorter", [True, False])
def test_log_that_is_written_anew_is_a_new_run(tmp_path, shorter):
    path, other = tmp_path / "run.jsonl", tmp_path / "other"
    path.write_text(text_of(header(job="first"), *rows(8)))
    following, watched = FileFollower(path), Watched()
    watched.take(following.poll())
    assert (watched.name, watched.latest.iteration) == ("first (simulated)", 7)
    other.write_text(text_of(header(job="second"), *rows(2 if shorter else 12)))
    if shorter:
        path.write_bytes(other.read_bytes())
    else:
        other.replace(path)
    watched.take(following.poll())
    assert (watched.name, watched.latest.iteration) == (
        "second (simulated)",
        1 if shorter else 11,
    )


def test_line_tells_how_many_rows_were_missed(capsys, log):
    watched = Watched()
    watched.take(FileFollower(log).poll())
    watched.num_missed = 6
    WatchView(every=1.0).show(watched, None)
    assert re.search(r" 6 rows missed\. .*16/16\.$", capsys.readouterr().out, re.M)


def test_log_that_never_comes_is_given_up(tmp_path, capsys):
    assert main(["watch", str(tmp_path / "none"), "--patience", "0.3"]) == 1
    assert "gave up after 0.3 s" in capsys.readouterr().err


def test_names_from_a_log_are_shown_as_they_can_be(printed, tmp_path):
    path = tmp_path / "run.jsonl"
    path.write_text(text_of(header(job="\x1b[31m\u202e[bold]"), *rows(), Event("end", 8)))
    said = printed(path)
    assert "\x1b" not in said and "\u202e" not in said and "[bold]" in said


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ((), "give either RUNLOG or --manager HOST:PORT, got neither"),
        (("x", "--manager", "h:1"), "got both"),
        (("x", "--job", "j"), "--job goes with --manager, got a run log"),
        (
            ("--manager", "node7:1", "--token-file", "t"),
            "--tls-ca must be given, so that the token",
        ),
        (("--manager", "127.0.0.1:1"), "the manager on 127.0.0.1:1 cannot be reached"),
    ],
)
def test_mistakes_are_named(refused, argv, message):
    assert message in refused(*argv)


def train(manager, job, first=0, last=4, **options):
    options = {"workers": 2, "total": 20, "lease": 60.0, **options}
    clients = [manager.connect(job, w, **options) for w in "ab"]
    boundary(clients, first)
    for k in range(first + 1, last):
        boundary(clients, k, 10.0, 20.0)
        time.sleep(0.3)
    return clients


def test_token_of_a_job_names_the_job_to_watch(printed, refused, tmp_path):
    token, job_file = "correct-horse-battery", tmp_path / "second.token"
    (tmp_path / "token").write_text(token)
    job_file.write_text(job_token(token, "second"))
    with running("--token-file", tmp_path / "token", log=tmp_path / "log") as manager:
        for job in ("first", "second"):
            for client in train(manager, job, last=2, token=token):
                client.leave()
        words = ("--manager", manager.address, "--token-file", job_file, "--every", "0.1")
        assert printed(*words).startswith("second (measured): iteration ")
        said = refused(*words, "--job", "first")
        assert "403 Forbidden: the token is for /events?job=second alone" in said


def test_job_of_a_manager_is_watched_to_its_end(printed, tmp_path):
    with running(log=tmp_path / "log") as manager:
        for client in train(manager, "resnet"):
            client.leave()
        said = printed("--manager", manager.url.removeprefix("http://"), "--every", "0.1")
    lines = said.splitlines()
    assert lines[0].startswith("resnet (measured): iteration ")
    assert "Waiting 25.0%. Plain BSP's time is not known: too few iterations" in lines[-2]
    assert lines[-1] == "The run has ended: all workers left."
