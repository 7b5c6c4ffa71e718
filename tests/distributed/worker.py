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
    serve(run_job)


def run_job(job: Job, number: int) -> Any:
    """Run a job in a process group of its own, and return its outcome."""
    torch.manual_seed(0)
    store = FileStore(job.store, job.num_workers)
    dist.init_process_group(
        "gloo", store=store, rank=number, world_size=job.num_workers, timeout=TIMEOUT
    )
    _meet(store, job.num_workers)
    try:
        return outcome(job)
    finally:
        gc.collect()
        dist.destroy_process_group()


def _meet(store: FileStore, num_workers: int) -> None:
    """Wait until the process group is there on all workers.

    Gloo connects each worker with all others, and one has its connections before the others have
    theirs. A job that fails at once would close them while another worker still waits for its own,
    and that worker would fail with "connectFullMesh" in place of what the job does.
    """
    if store.add("workers connected", 1) == num_workers:
        store.set("all connected", "")
    store.wait(["all connected"], TIMEOUT)


if __name__ == "__main__":
    main()
