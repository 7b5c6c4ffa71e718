"""Thousands of malformed inputs must not affect a job."""

import random
import socket
import struct
import threading

from thriftpy2.thrift import TMessageType

from evenstep.manager import wire
from evenstep.manager.wire import types
from tests.manager.managers import boundary

NUM_INPUTS = 4_000
SEED = 20


def valid_messages():
    """Return one message of every call, as bytes without the length before it."""
    t = types()
    service = t.BatchSizeManager
    settings = t.Settings(workers=2, total=8)
    entry = t.Entry(job="fuzz", worker="w", iteration=0, lease=1.0, settings=settings)
    report = t.Report(iteration=0, batch_size=1, batch_processing_time=0.1, cpu=0.5, plan=0)
    calls = {
        "hello": {"version": 1, "token": ""},
        "create": {"job": "fuzz", "settings": settings},
        "join": {"entry": entry},
        "report": {"report": report, "wait": 0.01},
        "agree": {"iteration": 0, "number": 0, "wait": 0.01},
        "renew": {},
        "leave": {},
        "status": {"job": ""},
    }
    frames = []
    for name, arguments in calls.items():
        body = wire.encode_body(getattr(service, f"{name}_args")(**arguments))
        frames.append(wire.encode_frame(name, TMessageType.CALL, 1, body)[4:])
    return frames


def framed(content):
    return struct.pack("!i", len(content)) + content


def garbage(rng, valid):
    """Return some bytes to send: random ones, or a message with something wrong in it."""
    message = bytearray(rng.choice(valid))
    kind = rng.randrange(8)
    if kind == 0:
        return rng.randbytes(rng.randrange(1, 200))
    if kind == 1:
        return framed(rng.randbytes(rng.randrange(1, 200)))
    if kind == 2:
        return framed(bytes(message[: rng.randrange(len(message))]))
    if kind == 3:
        return struct.pack("!i", rng.choice([-1, 0, 2**31 - 1, 2**20, -(2**31)])) + bytes(message)
    if kind == 4:
        at = rng.randrange(0, max(1, len(message) - 4))
        message[at : at + 4] = struct.pack("!i", rng.choice([-1, 2**31 - 1, 70_000, -(2**31)]))
        return framed(bytes(message))
    if kind == 5:
        return framed(bytes(message) + rng.randbytes(rng.randrange(1, 20)))
    if kind == 6:
        # A list of two billion elements that take no bytes, deep in an unknown field.
        nested = b"".join(b"\x0f\x00\x63" + b"\x0f\x7f\xff\xff\xff" for _ in range(20))
        return framed(bytes(message[:-1]) + nested + bytes([rng.randrange(256)]) * 5)
    for _ in range(rng.randrange(1, 8)):
        message[rng.randrange(len(message))] = rng.randrange(256)
    return framed(bytes(message))


def test_garbage_is_answered_or_closed_and_does_not_affect_others(manager, job):
    clients = [manager.connect(job, w, workers=2, total=8) for w in "ab"]
    k = 0
    stop = threading.Event()
    failures = []

    def train():
        nonlocal k
        try:
            while not stop.is_set():
                plans = boundary(clients, k)
                assert [plan.total for plan in plans] == [8, 8]
                k += 1
        except AssertionError as error:
            failures.append(error)

    training = threading.Thread(target=train)
    training.start()
    try:
        rng = random.Random(SEED)
        valid = valid_messages()
        host, port = manager.address.split(":")
        hello = framed(valid[0])
        for i in range(NUM_INPUTS):
            with socket.create_connection((host, int(port)), 5.0) as client:
                # Half of them say hello first, so that they reach the calls themselves.
                client.sendall((hello if i % 2 else b"") + garbage(rng, valid))
                client.shutdown(socket.SHUT_WR)
                # Wait until the input was read.
                while client.recv(65536):
                    pass
    finally:
        stop.set()
        training.join(30.0)
    assert failures == [] and k > 0
    assert all(client.failure is None for client in clients)
    boundary(clients, k)
    for client in clients:
        client.leave()
    assert manager.process.poll() is None
    assert "Traceback" not in manager.log
