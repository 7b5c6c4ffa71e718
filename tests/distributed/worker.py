"""One worker process: does the jobs that come over its connection, until that is closed."""

from __future__ import annotations

import gc
import pickle
import sys
import traceback
from datetime import timedelta
from importlib import import_module
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore

from tests.distributed.workers import Failure, Job

TIMEOUT = timedelta(seconds=40)


def main() -> None:
    number, descriptor = map(int, sys.argv[1:])
    connection: Connection[Any, Any] = Connection(descriptor)
    torch.set_num_threads(1)
    connection.send("ready")
    while True:
        try:
            job = connection.recv()
        except (EOFError, ConnectionResetError):
            return
        # Pickled by hand: a connection would send tensors as handles of shared memory.
        connection.send_bytes(pickle.dumps(_do(job, number)))


def _do(job: Job, number: int) -> Any:
    torch.manual_seed(0)
    store = FileStore(job.store, job.num_workers)
    dist.init_process_group(
        "gloo", store=store, rank=number, world_size=job.num_workers, timeout=TIMEOUT
    )
    try:
        return getattr(import_module(job.module), job.function)(**job.arguments)
    except Exception as error:
        return Failure(type(error).__name__, str(error), traceback.format_exc())
    finally:
        gc.collect()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
