"""One worker process of PyTorch: every job has a process group of its own."""

from __future__ import annotations

import gc
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore

from tests.distributed.workers import Job, outcome, serve

TIMEOUT = timedelta(seconds=40)


def main() -> None:
    torch.set_num_threads(1)
    serve(_do)


def _do(job: Job, number: int) -> Any:
    torch.manual_seed(0)
    store = FileStore(job.store, job.num_workers)
    dist.init_process_group(
        "gloo", store=store, rank=number, world_size=job.num_workers, timeout=TIMEOUT
    )
    try:
        return outcome(job)
    finally:
        gc.collect()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
