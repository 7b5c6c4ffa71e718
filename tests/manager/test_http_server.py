"""The HTTP port: access to its pages, and clients that misbehave."""

import asyncio
import contextlib
import random
import re
import socket
import ssl
import urllib.parse

import pytest

from evenstep.errors import ManagerUnreachable
from evenstep.manager import http_server
from evenstep.manager.access import job_token
from evenstep.manager.connection import ServiceConnection, Where
from tests.manager.managers import PATIENCE, refused, running, until
from tests.manager.test_access import TOKEN, make_certificate


def talk(url, request, context=None):
    """Send bytes, and return everything received until the other end closes."""
    where = urllib.parse.urlsplit(url)
    plain_socket = socket.create_connection((where.hostname, where.port), PATIENCE)
    with context.wrap_socket(plain_socket) if context else plain_socket as client:
        client.sendall(request)
        answer = b""
        while piece := client.recv(65536):
            answer += piece
        return answer.decode()


def status_of(answer):
    return int(answer.split(" ")[1])


def test_health_and_life(manager):
    assert manager.get("/healthz") == manager.get("/livez") == (200, "ok\n")


def test_other_pages_and_methods_are_refused(manager):
    status, text = manager.get("/secrets")
    assert (status, text) == (404, "there are /healthz, /livez, /metrics, /events\n")
    for method in ("POST", "DELETE", "OPTIONS"):
        answer = talk(
            manager.url, f"{method} /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
        )
        assert status_of(answer) == 405
        assert "\r\nallow: get, head\r\n" in answer.lower()
    assert manager.get("//[/")[0] == 400


def test_head_has_the_length_and_no_text(manager):
    answer = talk(manager.url, b"HEAD /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert status_of(answer) == 200
    assert "content-length: 3" in answer.lower()
    assert answer.endswith("\r\n\r\n")


@pytest.mark.parametrize(
    ("request_text", "status"),
    [
        (b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 20_000 + b"\r\n\r\n", 431),
        (b"GET /" + b"x" * 20_000 + b" HTTP/1.1\r\n\r\n", 431),
        (b"nonsense\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\r\n\r\n", 400),
    ],
)
def test_what_is_no_request_or_too_long_gets_an_answer_and_is_closed(manager, request_text, status):
    assert status_of(talk(manager.url, request_text)) == status
    assert manager.get("/healthz")[0] == 200


def test_request_under_a_foreign_name_is_refused_on_loopback(manager):
    for host, status in (("evil.example:80", 403), ("127.0.0.1:1", 200), ("localhost", 200)):
        text = f"GET /metrics HTTP/1.1\r\nHost: {host}\r\n\r\n"
        assert status_of(talk(manager.url, text.encode())) == status
    assert (
        status_of(talk(manager.url, b"GET /healthz HTTP/1.1\r\nHost: evil.example\r\n\r\n")) == 200
    )


def test_silent_connections_are_cut_off_and_their_number_is_limited(tmp_path):
    code = (
        "import sys; from evenstep.manager import http_server; http_server.PATIENCE = 1.0;"
        "http_server.MAX_CONNECTIONS = 3;"
        "from evenstep.cli.main import main; sys.exit(main(sys.argv[1:]))"
    )
    with running(log=tmp_path / "log", code=code) as manager:
        where = urllib.parse.urlsplit(manager.url)
        silent = [socket.create_connection((where.hostname, where.port)) for _ in range(4)]
        # The fourth takes the place of the first; the others are closed after their time.
        ends = []
        for one in silent:
            one.settimeout(PATIENCE)
            ends.append(one.recv(1))
            one.close()
        assert ends == [b""] * 4
        until(lambda: manager.get("/healthz")[0] == 200, "room for another connection")


GET = b"GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n"


@contextlib.contextmanager
def many(url, number, request):
    """Keep connections open that send the beginning of a request."""
    where = urllib.parse.urlsplit(url)
    with contextlib.ExitStack() as stack:
        for _ in range(number):
            client = socket.create_connection((where.hostname, where.port), PATIENCE)
            stack.enter_context(client)
            with contextlib.suppress(ConnectionError):
                client.sendall(request)
        yield


@pytest.mark.parametrize(
    "request_text",
    [b"", GET[:20], GET % b"/livez", GET % b"/metrics"],
    ids=["silent", "unfinished", "answered and open", "answered at length and open"],
)
def test_liveness_is_answered_however_many_connections_are_held(tmp_path, request_text):
    with running(log=tmp_path / "log") as manager, many(manager.url, 200, request_text):
        assert [manager.get("/livez") for _ in range(5)] == [(200, "ok\n")] * 5
        assert (
            len(
                re.findall(
                    f"the HTTP port has {http_server.MAX_CONNECTIONS} connections: cut", manager.log
                )
            )
            == 1
        )
        manager.stop()
        assert "Traceback" not in manager.log


@pytest.mark.parametrize("hello", [b"", b"\x16\x03\x01\x02\x00\x01"], ids=["silent", "unfinished"])
def test_liveness_is_answered_however_many_handshakes_are_unfinished(tmp_path, hello):
    certificate, key = make_certificate(tmp_path)
    context = ssl.create_default_context(cafile=certificate)
    context.check_hostname = False
    options = ("--tls-cert", certificate, "--tls-key", key)
    with running(*options, log=tmp_path / "log") as manager, many(manager.url, 200, hello):
        answers = [talk(manager.url, GET % b"/livez", context) for _ in range(5)]
        assert [status_of(answer) for answer in answers] == [200] * 5
        # Unfinished handshakes have places, so that their number has a limit.
        assert f"the HTTP port has {http_server.MAX_CONNECTIONS} connections: cut" in manager.log
        manager.stop()
        assert "Traceback" not in manager.log


def test_request_that_is_being_answered_is_not_cut_for_unfinished_ones():
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def respond(request):
        begun.set()
        await go_on.wait()
        return http_server.plain(200, "late")

    async def scenario():
        port = http_server.HttpPort(respond)
        async with port.listening("127.0.0.1", 0, None) as (url,):
            answer = asyncio.create_task(asyncio.to_thread(talk, url, GET % b"/slow"))
            await begun.wait()
            unfinished = many(url, 200, GET[:20])
            await asyncio.to_thread(unfinished.__enter__)
            # The last one must have been accepted before the answer is.
            await asyncio.to_thread(talk, url, b"nonsense\r\n\r\n")
            assert port.num_connections <= http_server.MAX_CONNECTIONS + 1
            go_on.set()
            assert (await answer).endswith("late\n")
            unfinished.__exit__(None, None, None)
        assert port.num_connections == 0

    asyncio.run(asyncio.wait_for(scenario(), PATIENCE))


def test_token_is_needed_for_all_but_health(tmp_path):
    (tmp_path / "token").write_text(TOKEN)
    with running("--token-file", tmp_path / "token", log=tmp_path / "log") as manager:
        assert manager.get("/healthz") == (200, "ok\n")
        for path in ("/metrics", "/events"):
            for given in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": TOKEN}):
                status, text = manager.get(path, **given)
                assert (status, TOKEN in text) == (401, False)
        assert manager.get("/metrics", Authorization=f"Bearer {TOKEN}")[0] == 200
        manager.stop()
        assert TOKEN not in manager.log


def test_token_of_a_job_is_enough_for_its_events_alone(tmp_path):
    (tmp_path / "token").write_text(TOKEN)
    token = job_token(TOKEN, "res:net@1")

    def status(path, token):
        """Return the status of a page, which may be a stream without an end."""
        where = urllib.parse.urlsplit(manager.url)
        head = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\r\n"
        with socket.create_connection((where.hostname, where.port), PATIENCE) as client:
            client.sendall(head.encode())
            return status_of(client.recv(4096).decode())

    with running("--token-file", tmp_path / "token", log=tmp_path / "log") as manager:
        for path in ("/events?job=res%3Anet%401", "/events?x=1&job=res:net@1&job=other"):
            assert status(path, token) == status(path, TOKEN) == 200, path
            assert status(path, job_token("another-horse-battery", "res:net@1")) == 401
        for path in (
            "/events", "/events?job=", "/events?job=other", "/events?job=other&job=res:net@1",
            "/events?JOB=res:net@1", "/events?job=res:net", "/metrics", "/metrics?job=res:net@1",
        ):  # fmt: skip
            assert status(path, token) == 403, path
        said = manager.get("/metrics", Authorization=f"Bearer {token}")[1]
        assert said == "the token is for /events?job=res%3Anet%401 alone\n"
        manager.stop()
        assert token not in manager.log


def test_tls_holds_for_both_ports_and_a_probe_needs_no_token(tmp_path):
    certificate, key = make_certificate(tmp_path)
    (tmp_path / "token").write_text(TOKEN)
    options = ("--tls-cert", certificate, "--tls-key", key, "--token-file", tmp_path / "token")
    with running(*options, log=tmp_path / "log") as manager:
        assert manager.url.startswith("https://")
        context = ssl.create_default_context(cafile=certificate)
        context.check_hostname = False
        head = b"GET %s HTTP/1.1\r\nHost: pod-7.example\r\n"
        assert talk(manager.url, head % b"/healthz" + b"\r\n", context).endswith("ok\n")
        request = head % b"/metrics" + b"\r\n"
        assert status_of(talk(manager.url, request, context)) == 401
        bearer = head % b"/metrics" + f"Authorization: Bearer {TOKEN}\r\n\r\n".encode()
        answer = talk(manager.url, bearer, context)
        assert status_of(answer) == 200
        assert "evenstep_jobs{" in answer
        with pytest.raises((OSError, IndexError)):
            status_of(talk(manager.url, request))


def test_address_that_others_can_reach_needs_token_and_tls_here_too(tmp_path):
    rule = "must listen on loopback, or have a token and TLS"
    assert rule in refused("--listen", "127.0.0.1:0", "--http", "0.0.0.0:0")


def test_taken_address_is_an_error_where_it_was_asked_for(manager, tmp_path):
    taken = urllib.parse.urlsplit(manager.url).netloc
    message = refused("--listen", "127.0.0.1:0", "--http", taken)
    assert f"cannot listen on {taken}: Address already in use" in message
    assert "another port with --http 127.0.0.1:PORT" in message


def test_remote_calls_to_the_http_port_are_answered_with_the_address_they_need(manager):
    where = Where(urllib.parse.urlsplit(manager.url).netloc)
    with pytest.raises(ManagerUnreachable, match="speaks HTTP; the address of --listen"):
        ServiceConnection(where, timeout=10.0)


def test_taken_default_address_is_a_warning(manager, tmp_path):
    port = urllib.parse.urlsplit(manager.url).port
    code = (
        "import sys; from evenstep.cli import manager, main;"
        f"manager.DEFAULT_HTTP_ADDRESS = '127.0.0.1:{port}'; sys.exit(main.main(sys.argv[1:]))"
    )
    with running(log=tmp_path / "log", code=code, http=False) as other:
        assert "no metrics: " in other.log
        assert "cannot listen on" in other.log
        with other.connect("j", "a", workers=1, total=8):
            pass


def test_http_can_be_turned_off(tmp_path):
    with running("--http", "off", log=tmp_path / "log") as manager:
        assert manager.stop() == "evenstep manager: stopped; 0 jobs not kept: there is no --state\n"


def test_health_says_that_the_state_cannot_be_written(tmp_path):
    state = tmp_path / "state"
    with running("--state", state, log=tmp_path / "log") as manager:
        # A folder of that name: not even root can write the file.
        (state / "j.job.npz").mkdir()
        manager.command("create", "j", "--workers", 1, "--total", 8)
        until(lambda: manager.get("/healthz")[0] == 503, "the failure")
        status, said = manager.get("/healthz")
        assert status == 503 and re.fullmatch(r".*\bstate\b.*written\n", said)
        assert manager.get("/livez")[0] == 200
        (state / "j.job.npz").rmdir()
        until(lambda: manager.get("/healthz")[0] == 200, "the recovery")
        assert "state_write_failures_total 0.0" not in manager.get("/metrics")[1]
        assert manager.stop() == f"evenstep manager: stopped; kept 1 job in {state}\n"


def test_url_of_ipv6():
    assert http_server.url("::1", 1, has_tls=True) == "https://[::1]:1"


def test_damaged_requests_do_not_affect_others(manager):
    rng = random.Random(0)
    whole = [
        b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nAccept: text/plain;version=1.0.0\r\n\r\n",
        b"GET /events?job=a HTTP/1.1\r\nHost: localhost\r\nLast-Event-ID: 0\r\n\r\n",
        b"POST /metrics HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n123456789",
    ]
    where = urllib.parse.urlsplit(manager.url)
    for _ in range(150):
        request = bytearray(rng.choice(whole))
        for _ in range(rng.randrange(1, 5)):
            request[rng.randrange(len(request))] = rng.randrange(256)
        with socket.create_connection((where.hostname, where.port), PATIENCE) as client:
            client.sendall(request[: rng.randrange(1, len(request) + 1)])
            client.shutdown(socket.SHUT_WR)
            if rng.random() < 0.5:
                with contextlib.suppress(ConnectionError):
                    client.recv(100)
    assert manager.get("/healthz") == (200, "ok\n")
    assert "Traceback" not in manager.log
