"""``evenstep dashboard``: where it listens, what it refuses, and how it ends."""

import contextlib
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

import pytest

from evenstep.cli.dashboard import _source
from evenstep.cli.main import main, parser_of
from evenstep.insight.dashboard.managed import Managed
from evenstep.manager.access import job_token
from tests.manager.managers import boundary, running, until
from tests.runlog.examples import header, row, text_of

TOKEN = "correct-horse-battery"


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "run.jsonl"
    path.write_text(text_of(header(), row(0)))
    return path


@pytest.mark.parametrize(
    "words, problem",
    [
        (["nowhere.jsonl"], "a run log or a folder must be there"),
        ([".", "--manager", "127.0.0.1:7411"], "--manager must come without"),
        ([".", "--tls-ca", "ca.pem"], "--tls-ca goes with --manager"),
        ([".", "--tls-cert", "cert.pem"], "must be given together"),
        ([".", "--tls-cert", "no.pem", "--tls-key", "no.pem"], "a certificate and its key, got"),
        ([".", "--tls-cert", __file__, "--tls-key", __file__], "a certificate and its key, got"),
        ([".", "--listen", "0.0.0.0:0"], "must listen on loopback"),
        ([".", "--listen", "nonsense:port"], "a port must be a number"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(capsys, words, problem):
    assert main(["dashboard", *words]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert problem in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("token", [TOKEN.encode() + b"\nmore", b"\xff" * 20])
def test_a_token_that_no_header_can_carry_is_refused_and_not_told(capsys, tmp_path, token):
    path = tmp_path / "token"
    path.write_bytes(token)
    words = ["--manager", "127.0.0.1:1", "--token-file", str(path)]
    assert main(["dashboard", *words]) == 2
    err = capsys.readouterr().err
    assert "a token must be" in err
    assert TOKEN not in err
    assert "xff" not in err


def test_a_token_for_a_far_manager_needs_tls(capsys, tmp_path):
    token = tmp_path / "token"
    token.write_text(TOKEN)
    words = ["--manager", "node7:7411", "--token-file", str(token)]
    assert main(["dashboard", *words]) == 2
    err = capsys.readouterr().err
    assert re.search(r": error: --tls-ca must be given", err)
    assert TOKEN not in err


def test_token_of_a_job_shows_that_job(tmp_path):
    (tmp_path / "token").write_text(TOKEN)
    (tmp_path / "second.token").write_text(job_token(TOKEN, "second"))
    with running("--token-file", tmp_path / "token", log=tmp_path / "log") as manager:
        for job in ("first", "second"):
            client = manager.connect(job, "a", workers=1, total=8, token=TOKEN)
            boundary([client], 0)
            boundary([client], 1, 10.0)
            client.leave()
        words = ["--manager", manager.address, "--token-file", str(tmp_path / "second.token")]
        source = _source(parser_of("dashboard").parse_args(words))
        assert isinstance(source, Managed)
        source.start()
        until(lambda: source.poll() and source.entries(), "the job must be shown")
        assert ([entry.job for entry in source.entries()], source.problem) == (["second"], None)
        source._follower.close()


def test_port_in_use_says_how_to_choose_another(capsys, log):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        assert main(["dashboard", str(log), "--listen", address]) == 2
    err = capsys.readouterr().err
    assert f"cannot listen on {address}: Address already in use, perhaps by another dash" in err
    assert "another port with --listen 127.0.0.1:PORT (0: any free one)" in err


def test_it_serves_until_it_is_told_to_stop(log, tmp_path):
    token = tmp_path / "token"
    token.write_text(TOKEN)
    with serving(log, "--viewer-token-file", token) as (url, process):
        with urllib.request.urlopen(url, timeout=20) as answer:
            assert b"<title>Evenstep</title>" in answer.read()
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(f"{url}/api/stream", timeout=20)
        assert refused.value.code == 401
        refused.value.close()
        request = urllib.request.Request(f"{url}/api/stream")
        request.add_header("Authorization", f"Bearer {TOKEN}")
        with urllib.request.urlopen(request, timeout=20) as stream:
            assert stream.readline().startswith(b": ")
            process.send_signal(signal.SIGTERM)
            # The stream ends by itself, so that the page hears of it.
            stream.read()
        out, err = process.communicate(timeout=20)
        assert (process.returncode, out, err) == (0, "", "")


@contextlib.contextmanager
def serving(log, *options):
    """Run a dashboard; yields its URL and its process."""
    words = ["dashboard", str(log), "--listen", "127.0.0.1:0", *map(str, options)]
    process = subprocess.Popen(
        [sys.executable, "-m", "evenstep", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        yield process.stdout.readline().removeprefix("evenstep dashboard: ").strip(), process
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()


@pytest.mark.parametrize(
    "request_text",
    [
        b"GET / HTTP/1.1\r\nHost:",
        b"GET /assets/main.js HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ],
    ids=["unfinished", "answered"],
)
def test_page_is_served_and_a_stream_goes_on_however_many_connections_are_held(log, request_text):
    with serving(log) as (url, process), contextlib.ExitStack() as stack:

        def get(target):
            return stack.enter_context(urllib.request.urlopen(url + target, timeout=20))

        stream = get("/api/stream")
        assert stream.readline().startswith(b": ")
        where = urllib.parse.urlsplit(url)
        for _ in range(300):
            held = socket.create_connection((where.hostname, where.port), 20)
            stack.enter_context(held)
            with contextlib.suppress(ConnectionError):
                held.sendall(request_text)
        for _ in range(5):
            assert b"<title>Evenstep</title>" in get("/").read()
        # What comes every few seconds arrives after the others were cut, as the stream was not.
        while not stream.readline().startswith(b": nothing new"):
            pass
        assert len(list(Path(f"/proc/{process.pid}/fd").iterdir())) < 200
        process.send_signal(signal.SIGTERM)
        stream.read()
        assert process.communicate(timeout=20)[1] == ""
