"""A training in which one worker dies, stops, hangs or fails, for the tests of lost workers.

    python -m tests.pytorch.lost_job MODE WORKER ITERATION OPTIONS

With `fine` nothing goes wrong: worker 0 evaluates for long, alone.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

from evenstep.pytorch import Balancer
from evenstep.training import heartbeat
from tests.pytorch.setup import data, net

TIMEOUT = 10.0
"""Seconds after which the process group gives up, where no watchdog does."""
PACE = 0.3
"""Seconds of an iteration."""


def endless_loop() -> None:
    while True:
        time.sleep(0.01)


def evaluate() -> None:
    time.sleep(1.5 * heartbeat.LEAST)


def fail(mode: str) -> None:
    if mode == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif mode == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif mode == "raise":
        raise ValueError("a broken sample")
    elif mode == "hang":
        endless_loop()


def main() -> None:
    mode, worker, iteration = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    options = json.loads(sys.argv[4])
    heartbeat.LEAST = 7.0
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=40 if options else TIMEOUT))
    model = DistributedDataParallel(net())
    balancer = Balancer(model, 12, summary=False, **options)
    for samples, labels in balancer.loader(data(12 * (iteration + 3))):
        time.sleep(PACE)
        is_there = balancer.iteration == iteration and dist.get_rank() == worker
        if is_there:
            fail(mode)
        F.cross_entropy(model(samples), labels).backward()
        if is_there and mode == "fine":
            evaluate()
    balancer.close()
    print("trained to the end", file=sys.stderr, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
