"""Access to a manager: addresses, tokens, TLS, limits."""

import re
import subprocess

import pytest

from evenstep.errors import InvalidSetting, LimitReached, ManagerUnreachable, Refused
from evenstep.manager.access import parse_address
from evenstep.manager.client_connection import MAX_REFUSED
from evenstep.manager.connection import MANAGER, ServiceConnection, Where
from evenstep.manager.job_settings import JobSettings
from evenstep.manager.jobs import Jobs
from tests.manager.managers import boundary, refused, running

TOKEN = "correct-horse-battery-staple"


@pytest.fixture
def token_file(tmp_path):
    path = tmp_path / "token"
    path.write_text(f"{TOKEN}\n")
    return path


def test_address_that_others_can_reach_is_refused_without_token_and_tls(token_file):
    rule = "must listen on loopback, or have a token and TLS"
    both = refused("--listen", "0.0.0.0:0")
    assert rule in both and "without token and TLS" in both
    one = refused("--listen", "0.0.0.0:0", "--token-file", token_file)
    assert rule in one and "without TLS" in one
    assert TOKEN not in one


def test_insecure_listens_anywhere_and_warns(tmp_path):
    with running("--listen", "0.0.0.0:0", "--insecure", log=tmp_path / "log") as manager:
        assert re.search(r"0\.0\.0\.0.*\banybody\b|\banybody\b.*0\.0\.0\.0", manager.log)


def test_short_token_and_half_of_tls_are_refused(tmp_path):
    (tmp_path / "token").write_text("hunter2")
    said = refused("--token-file", tmp_path / "token")
    assert "at least 16 characters, got 7" in said
    assert "hunter2" not in said
    assert "must be given together" in refused("--tls-cert", "cert.pem")


def test_token_and_tls(tmp_path, token_file):
    certificate, key = make_certificate(tmp_path)
    options = ["--token-file", token_file, "--tls-cert", certificate, "--tls-key", key]
    with running(*options, log=tmp_path / "log") as manager:
        inside = {"workers": 2, "total": 8, "ca": certificate, "token": TOKEN, "patience": 1.0}
        clients = [manager.connect("j", w, **inside) for w in "ab"]
        for k in range(5):
            boundary(clients, k)
        for client in clients:
            client.leave()
        for wrong in (None, "", "wrong-horse-battery-staple"):
            with pytest.raises(Refused, match=r"\btoken is not\b") as outside:
                manager.connect("j", "c", **{**inside, "token": wrong})
            assert outside.value.problem == "TOKEN"
        # Without TLS, or without its certificate, no call succeeds.
        with pytest.raises(ManagerUnreachable, match="as one with TLS does"):
            manager.connect("j", "c", **{**inside, "ca": None})
        asked = ["--token-file", token_file, "--tls-ca", certificate]
        assert "j: waiting" in manager.command("status", *asked)
        manager.stop()
        assert TOKEN not in manager.log and "wrong-horse" not in manager.log
    assert TOKEN not in repr(Where("here", TOKEN))


def make_certificate(folder):
    """Make a self-signed certificate for 127.0.0.1."""
    certificate, key = folder / "cert.pem", folder / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
         "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1",
         "-keyout", key, "-out", certificate],
        check=True, capture_output=True,
    )  # fmt: skip
    return certificate, key


def test_files_of_tls_that_are_not_there_are_named(tmp_path):
    gone = tmp_path / "gone.pem"
    assert f"{gone} and {gone} must be a certificate" in refused(
        "--tls-cert", gone, "--tls-key", gone
    )
    assert f"{gone} must hold certificates" in refused("status", "--tls-ca", gone)


def test_nothing_is_answered_before_hello(manager):
    connection = ServiceConnection.__new__(ServiceConnection)
    connection._where, connection._sequence = Where(manager.address), 0
    connection._callee = MANAGER
    connection._socket = connection._connect(5.0)
    for call, arguments in (("status", {"job": ""}), ("renew", {})):
        with pytest.raises(Refused, match=r"\bmust be hello\b") as early:
            connection.call(call, 5.0, **arguments)
        assert early.value.problem == "TOKEN"
    connection.close()


def test_connection_is_closed_after_too_many_refused_calls(manager):
    connection = ServiceConnection(Where(manager.address), 5.0)
    for _ in range(MAX_REFUSED):
        with pytest.raises(Refused):
            connection.call("renew", 5.0)
    with pytest.raises(ManagerUnreachable):
        connection.call("renew", 5.0)
    connection.close()


def test_number_of_jobs_is_limited_and_finished_ones_make_room(tmp_path):
    jobs = Jobs(tmp_path, max_jobs=3)
    settings = JobSettings(workers=1, total=8)
    seen = []
    jobs.notifications.listen(lambda one: seen.append((one.kind, one.job)))
    for name in ("finished", "old", "running"):
        jobs.create(name, settings).join("w", 0, 5.0, now=0.0)
        jobs.write(jobs.changed())
    jobs.find("old").leave("w")
    jobs.write(jobs.changed())
    jobs.find("finished").leave("w")
    jobs.write(jobs.changed())
    jobs.create("new", settings).join("w", 0, 5.0, now=0.0)
    assert [job.name for job in jobs] == ["finished", "running", "new"]
    assert ("forgotten", "old") in seen
    jobs.create("newer", settings).join("w", 0, 5.0, now=0.0)
    jobs.write(jobs.changed())
    names = sorted(path.name for path in tmp_path.glob("*.npz"))
    assert names == [f"{name}.job.npz" for name in ("new", "newer", "running")]
    with pytest.raises(LimitReached, match="at most 3 jobs with workers"):
        jobs.create("newest", settings)
    assert [job.name for job in jobs] == ["running", "new", "newer"]


@pytest.mark.parametrize("bad", ["", ":80", "a:b", "::1:80", "host:99999", "host:-1"])
def test_bad_addresses_are_refused(bad):
    with pytest.raises(InvalidSetting):
        parse_address(bad)
