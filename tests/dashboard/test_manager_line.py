"""The line to a manager: tried again whatever is at its other end, and the token stays here."""

import socket
import threading
from contextlib import contextmanager

import pytest

from evenstep.dashboard import manager_line
from evenstep.dashboard.manager_line import ManagerLine
from tests.manager.managers import until

TOKEN = "correct-horse-battery"
STREAM = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@contextmanager
def answering(answer: bytes):
    """Yield a port that gives everybody the same answer, and what it was asked."""
    asked: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def work():
            while True:
                try:
                    line, _ = listening.accept()
                except OSError:
                    return
                with line:
                    asked.append(line.recv(4096))
                    line.sendall(answer)

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        try:
            yield listening.getsockname()[1], asked
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            thread.join(5)


@pytest.fixture(autouse=True)
def hasty(monkeypatch):
    monkeypatch.setattr(manager_line, "PAUSE", 0.01)


@pytest.mark.parametrize(
    "answer", [b"\x80\x01 what a remote call looks like\r\n\r\n", STREAM + b"20\r\n: cut off\n\n"]
)
def test_a_line_is_tried_again_where_no_manager_answers_or_one_dies_in_an_event(answer):
    with answering(answer) as (port, asked):
        line = ManagerLine(f"http://127.0.0.1:{port}", None, None)
        line.start()
        try:
            until(lambda: len(asked) > 2, "another try")
            until(lambda: "cannot be reached: " in (line.problem or ""), "what is wrong")
        finally:
            line.close()


def test_any_letters_of_a_token_reach_the_manager_as_it_reads_them():
    token = "schlüssel-из-слов"
    with answering(b"") as (port, asked):
        line = ManagerLine(f"http://127.0.0.1:{port}", token, None)
        line.start()
        try:
            until(lambda: asked, "the request")
        finally:
            line.close()
    assert f"Authorization: Bearer {token}\r\n".encode() in asked[0]


def test_a_redirection_does_not_get_the_token():
    with answering(b"") as (elsewhere, asked):
        answer = f"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:{elsewhere}/\r\n\r\n".encode()
        with answering(answer) as (port, asked_first):
            line = ManagerLine(f"http://127.0.0.1:{port}", TOKEN, None)
            line.start()
            try:
                until(lambda: len(asked_first) > 1, "another try")
            finally:
                line.close()
        assert TOKEN.encode() in asked_first[0]
        assert asked == []
        assert line.problem == "the manager answers 302 Found"
