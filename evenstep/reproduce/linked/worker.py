"""A worker of a linked run: pulls parameters, computes a gradient, takes its time, pushes it."""

from __future__ import annotations

import signal
import sys
import time
from multiprocessing.connection import Connection

import numpy as np

from evenstep.engines.replica import Replica
from evenstep.manager.line import Line, Where
from evenstep.reproduce.linked.flat import pack, unpack
from evenstep.reproduce.linked.idl import PARAMETER_SERVER
from evenstep.reproduce.linked.isolation import end_with_parent, leave_network
from evenstep.reproduce.linked.training import SEED
from evenstep.workloads.workload import Workload

WAIT = 60.0
"""Seconds after which a call has failed."""


def work(number: int, workload: Workload, pipe: Connection) -> None:
    """Run in a process of its own.

    The pipe is told None when there is a network namespace, tells an address then, and is told
    what goes wrong.
    """
    # Ctrl-C is the parent's to hear.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        end_with_parent()
        leave_network()
        pipe.send(None)
        train(number, workload, pipe.recv())
    except Exception as problem:
        pipe.send(str(problem) or type(problem).__name__)
        sys.exit(1)


def train(number: int, workload: Workload, address: str) -> None:
    """Train with the others until it is over."""
    replica = Replica(workload, SEED)
    server = Line(Where(address), WAIT, PARAMETER_SERVER)
    t = 0.0
    while True:
        batch = server.call("report", WAIT, worker=number, batch_processing_time=t)
        if not batch.samples:
            return
        begin = time.perf_counter()
        pulled = unpack(server.call("pull", WAIT), replica.parameters)
        until = time.perf_counter() + batch.computation
        gradient = pack(replica.gradients(pulled, np.array(batch.samples)))
        time.sleep(max(0.0, until - time.perf_counter()))
        server.call("push", WAIT, worker=number, gradient=gradient)
        t = time.perf_counter() - begin
