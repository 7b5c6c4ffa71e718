"""The manager's own log lines."""

import json
import logging
import re

from evenstep.manager.log_format import JsonLines, Seldom, log_notification
from evenstep.manager.notifications import Notification
from tests.manager.managers import boundary, running
from tests.manager.test_access import TOKEN


def test_json_lines_tell_what_happened_and_no_token(tmp_path):
    (tmp_path / "token").write_text(TOKEN)
    options = ("--token-file", tmp_path / "token", "--log-format", "json")
    with running(*options, "--state", tmp_path / "state", log=tmp_path / "log") as manager:
        clients = [manager.connect("j", w, workers=2, total=8, token=TOKEN) for w in "ab"]
        boundary(clients, 0)
        for client in clients:
            client.leave()
        manager.get("/metrics", Authorization="Bearer wrong-horse-battery-staple")
        manager.stop()
        assert TOKEN not in manager.log and "wrong-horse" not in manager.log
        lines = [json.loads(line) for line in manager.log.splitlines()]
    assert [(line["event"], line.get("worker")) for line in lines] == [
        ("created", None),
        ("joined", "a"),
        ("joined", "b"),
        ("begun", None),
        ("left", "a"),
        ("left", "b"),
        ("ended", None),
    ]
    assert {line["level"] for line in lines} == {"info"}
    assert {line["job"] for line in lines} == {"j"}
    assert lines[0]["settings"]["total"] == 8
    assert re.fullmatch(r"job j: worker a .*\biteration 0\b.*", lines[1]["message"])


def test_text_lines_say_the_same(caplog):
    caplog.set_level(logging.INFO)
    log_notification(Notification("lost", "j", "w0"))
    log_notification(
        Notification("ended", "j", details={"iteration": 7, "reason": "all workers left"})
    )
    log_notification(Notification("boundary", "j"))
    lost, ended = caplog.records
    assert (lost.levelname, ended.levelname) == ("WARNING", "INFO")
    assert re.fullmatch(r"job j: worker w0 .*\blease", lost.getMessage())
    assert re.fullmatch(r"job j: .*\biteration 7, all workers left", ended.getMessage())


def test_errors_are_one_json_line_too():
    record = logging.LogRecord("x", logging.ERROR, "", 0, "saving\nfailed", None, None)
    try:
        raise ValueError("what was wrong")
    except ValueError as error:
        record.exc_info = (type(error), error, error.__traceback__)
    (line,) = JsonLines().format(record).splitlines()
    logged = json.loads(line)
    assert (logged["level"], logged["event"], logged["message"]) == (
        "error",
        "log",
        "saving\nfailed",
    )
    assert logged["error"].endswith("ValueError: what was wrong")


def test_seldom_logs_once_a_minute_and_says_how_many_were_left_out(caplog):
    now = 0.0
    seldom = Seldom(logging.getLogger("seldom"), 60.0, clock=lambda: now)
    for now in (0.0, 1.0, 59.9, 60.0, 119.0, 300.0, 400.0):  # noqa: B007
        seldom.warning("cut %s of %d %%", "one", 7)
    first = "cut one of 7 %"
    assert [record.getMessage() for record in caplog.records] == [
        first,
        f"{first} (and 2 more times since the last such line)",
        f"{first} (and 1 more times since the last such line)",
        first,
    ]
