"""One worker process, in the environment that torchrun would give it.

Trainers find the process group of the job there, and read rank and world size from the variables.
"""

from __future__ import annotations

import os
from typing import Any

import torch

from tests.distributed.worker import run_job
from tests.distributed.workers import Job, serve


def main() -> None:
    torch.set_num_threads(1)
    serve(_do)


def _do(job: Job, number: int) -> Any:
    rank, world_size = str(number), str(job.num_workers)
    os.environ |= {
        "RANK": rank, "LOCAL_RANK": rank, "GROUP_RANK": "0",
        "WORLD_SIZE": world_size, "LOCAL_WORLD_SIZE": world_size,
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500", "TORCHELASTIC_RUN_ID": "tests",
        "ACCELERATE_USE_CPU": "true", "HF_HUB_OFFLINE": "1",
    }  # fmt: skip
    return run_job(job, number)


if __name__ == "__main__":
    main()
