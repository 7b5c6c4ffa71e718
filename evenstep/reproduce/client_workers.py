"""Workers of a job that have the public client, `evenstep.connect`, each in a thread of its own."""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from functools import partial
from threading import Barrier, BrokenBarrierError
from typing import TYPE_CHECKING

import numpy as np

import evenstep
from evenstep.core.arrays import Floats
from evenstep.core.report import Report
from evenstep.reproduce.played_workers import SAMPLES, USAGE, draw_speeds, draw_times

if TYPE_CHECKING:
    from evenstep.manager.client import ManagerClient

_WARM_UP = 5
_WAIT = 60.0


def client_rounds(
    address: str, job: str, num_workers: int, predictor: str, num_rounds: int
) -> Floats:
    """Return the seconds of rounds, from the first report until the last worker has its plan."""
    connect = partial(
        evenstep.connect,
        address,
        job,
        workers=num_workers,
        total=SAMPLES * num_workers,
        policy="proportional",
        predictor=predictor,
        lease=_WAIT,
        timeout=_WAIT,
    )
    speeds = draw_speeds(num_workers, np.random.default_rng(0))
    together = Barrier(num_workers, timeout=_WAIT)
    with ExitStack() as stack:
        clients = [stack.enter_context(connect(f"w{i}")) for i in range(num_workers)]
        pool = stack.enter_context(ThreadPoolExecutor(num_workers))
        taking_part = [
            pool.submit(_take_part, client, speed, i, together, _WARM_UP + num_rounds)
            for i, (client, speed) in enumerate(zip(clients, speeds, strict=True))
        ]
        spans = np.array(_results(taking_part))[:, _WARM_UP:]
    begun, ended = spans[:, :, 0].min(axis=0), spans[:, :, 1].max(axis=0)
    seconds: Floats = ended - begun
    return seconds


def _take_part(
    client: ManagerClient, speed: float, seed: int, together: Barrier, num_rounds: int
) -> Floats:
    """Return when each boundary of a worker began and ended, (iteration, 2)."""
    rng = np.random.default_rng((0, seed))
    spans = np.empty((num_rounds, 2))
    try:
        for k in range(num_rounds):
            report = _report(client, k, speed, rng)
            together.wait()
            begin = time.perf_counter()
            client.boundary(report)
            spans[k] = begin, time.perf_counter()
            if client.failure is not None:
                raise client.failure
    except BaseException:
        together.abort()
        raise
    return spans


def _report(client: ManagerClient, k: int, speed: float, rng: np.random.Generator) -> Report:
    if k == 0:
        return Report(client.worker, k, usage=USAGE)
    x = client.batch_size
    t = draw_times(np.array([x]), np.array([speed]), rng)
    return Report(client.worker, k, x, float(t[0]), USAGE)


def _results(taking_part: list[Future[Floats]]) -> list[Floats]:
    """Return what all workers found; raises what went wrong first, not what that broke."""
    wait(taking_part)
    problems = [problem for each in taking_part if (problem := each.exception()) is not None]
    for problem in sorted(problems, key=lambda found: isinstance(found, BrokenBarrierError)):
        raise problem
    return [each.result() for each in taking_part]
