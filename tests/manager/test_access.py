"""Access to a manager: addresses, tokens, TLS, limits."""

import re
import subprocess
import sys
from contextlib import closing

import pytest

from evenstep.errors import InvalidSetting, LimitReached, ManagerUnreachable, Refused
from evenstep.manager.access import admitted_job, job_of, job_token, parse_address
from evenstep.manager.client_connection import MAX_REFUSED
from evenstep.manager.connection import MANAGER, ServiceConnection, Where
from evenstep.manager.job_settings import JobSettings
from evenstep.manager.jobs import Jobs
from evenstep.manager.messages import from_settings
from evenstep.manager.wire import types
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


def ask(manager, token, call, **arguments):
    with closing(ServiceConnection(Where(manager.address, token), 5.0)) as connection:
        return connection.call(call, 5.0, **arguments)


def test_token_of_a_job_is_for_that_job_alone(tmp_path, token_file):
    settings = from_settings(JobSettings(2, 8, "even", "ema"))
    words = [sys.executable, "-m", "evenstep", "manager", "token", "resnet:2@x"]
    words += ["--token-file", str(token_file)]
    with running("--token-file", token_file, log=tmp_path / "log") as manager:
        token = subprocess.check_output(words, text=True).strip()
        assert token == job_token(TOKEN, "resnet:2@x") and TOKEN not in token
        ask(manager, TOKEN, "create", job="other", settings=settings)
        clients = [manager.connect("resnet:2@x", w, workers=2, total=8, token=token) for w in "ab"]
        for k in range(3):
            boundary(clients, k)
        for name in ("", "resnet:2@x"):
            assert [job.job for job in ask(manager, token, "status", job=name)] == ["resnet:2@x"]
        assert len(ask(manager, TOKEN, "status", job="")) == 2
        entry = types().Entry(job="other", worker="c", iteration=0, lease=10.0)
        own = types().Entry(
            job="resnet:2@x", worker="c", iteration=0, lease=10.0, settings=settings, reuse="other"
        )
        for call, arguments in (
            ("create", {"job": "other", "settings": settings}),
            ("create", {"job": "third", "settings": settings}),
            ("create", {"job": "resnet:2@x", "settings": settings, "reuse": "other"}),
            ("join", {"entry": entry}),
            ("join", {"entry": own}),
            ("status", {"job": "other"}),
            ("status", {"job": "resnet"}),
            ("status", {"job": "no-such-job"}),
        ):
            with pytest.raises(Refused, match="for job resnet:2@x alone, got job") as other:
                ask(manager, token, call, **arguments)
            assert other.value.problem == "TOKEN" and token not in str(other.value)
        for client in clients:
            client.leave()
        manager.stop()
        manager.start()
        # Nothing about it was saved, and it is still valid.
        assert ask(manager, token, "status", job="") == []
        manager.stop()
        assert token not in manager.log and token.rpartition(":")[2] not in manager.log


def test_connection_that_greets_twice_has_what_its_last_token_allows(tmp_path, token_file):
    with (
        running("--token-file", token_file, log=tmp_path / "log") as manager,
        closing(ServiceConnection(Where(manager.address, TOKEN), 5.0)) as connection,
    ):
        connection.call("hello", 5.0, version=1, token=job_token(TOKEN, "a"))
        with pytest.raises(Refused, match="for job a alone, got job b"):
            connection.call("status", 5.0, job="b")
        # A wrong token changes nothing.
        with pytest.raises(Refused, match="token is not"):
            connection.call("hello", 5.0, version=1, token=job_token("x" * 16, "b"))
        with pytest.raises(Refused, match="for job a alone, got job b"):
            connection.call("status", 5.0, job="b")


GOOD = job_token(TOKEN, "resnet")
DIGEST = GOOD.rpartition(":")[2]


@pytest.mark.parametrize(
    "given",
    [
        "",
        DIGEST,
        "evenstep-job:",
        "evenstep-job::",
        f"evenstep-job:{DIGEST}",
        f"evenstep-job::{DIGEST}",
        f"evenstep-job:other:{DIGEST}",
        f"evenstep-job:resnet2:{DIGEST}",
        f"evenstep-job:resnet:{DIGEST[:-1]}",
        f"evenstep-job:resnet:{DIGEST.upper()}",
        f"evenstep-job:resnet:{DIGEST}:{DIGEST}",
        f"evenstep-job:resnet:x:{DIGEST}",
        f"evenstep-job:resnet:{TOKEN}",
        f"EVENSTEP-JOB:resnet:{DIGEST}",
        f"evenstep-job:resnet\0:{DIGEST}",
        f"evenstep-job:resnet :{DIGEST}",
        f"evenstep-job:r\N{LATIN SMALL LETTER E WITH ACUTE}snet:{DIGEST}",
        f"evenstep-job:resn\N{CYRILLIC SMALL LETTER IE}t:{DIGEST}",
        f" {GOOD}",
        f"{GOOD}\n",
        f"{GOOD}\0",
        f"evenstep-job:{'a' * 15_000}:{DIGEST}",
        job_token("other-horse-battery-staple", "resnet"),
        job_token(GOOD, "resnet"),
        job_token("", "resnet"),
    ],
)
def test_altered_tokens_of_jobs_are_refused(given):
    assert admitted_job(GOOD, TOKEN) == "resnet"
    with pytest.raises(Refused) as refused:
        admitted_job(given, TOKEN)
    assert str(refused.value) == "the token is not that of this manager, nor of a job of it"


def test_every_name_of_a_job_is_found_in_its_token():
    for name in ("a", ":", "a:b", ":a:", "evenstep-job:x", "x" * 128, DIGEST, "a@b-c_d.e"):
        assert job_of(job_token(TOKEN, name)) == admitted_job(job_token(TOKEN, name), TOKEN) == name
    assert admitted_job(TOKEN, TOKEN) is job_of(TOKEN) is None
    assert len({job_token(TOKEN, name) for name in ("a", "b", "a:b", "b:a")}) == 4


def test_manager_without_a_token_admits_everybody_to_all_jobs(manager):
    assert admitted_job(GOOD, None) is None
    assert ask(manager, GOOD, "status", job="") == ask(manager, None, "status", job="")


def test_long_tokens_do_not_reach_the_jobs_of_others(tmp_path, token_file):
    with running("--token-file", token_file, log=tmp_path / "log") as manager:
        for given in (f"evenstep-job:{'a' * 15_000}:{DIGEST}", "\0" * 5_000, "é" * 5_000):
            with pytest.raises(Refused, match="token is not"):
                ask(manager, given, "status", job="")
        with pytest.raises(ManagerUnreachable):
            ask(manager, "x" * 100_000, "status", job="")
        assert ask(manager, GOOD, "status", job="") == []


def test_token_of_a_job_is_not_that_of_a_manager(tmp_path, token_file):
    (tmp_path / "resnet.token").write_text(GOOD)
    for words in ((), ("token", "resnet")):
        said = refused(*words, "--token-file", tmp_path / "resnet.token")
        assert "must be that of a manager, got that of a job" in said and DIGEST not in said
    assert "token needs JOB and --token-file" in refused("token", "resnet")
    assert "token needs JOB and --token-file" in refused("token", "--token-file", token_file)
    assert "name of a job must" in refused("token", "räsnet", "--token-file", token_file)
    rule = "--workers must not be given, as token has no use for it"
    assert rule in refused("token", "a", "--token-file", token_file, "--workers", "2")


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
