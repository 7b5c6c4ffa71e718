"""The worker processes of the tests themselves: nothing that goes wrong outlives its job."""

from __future__ import annotations

import os
import time

import pytest
import torch
import torch.distributed as dist

from tests.distributed.workers import Workers

pytestmark = pytest.mark.distributed


def who() -> tuple[int, int]:
    return dist.get_rank(), os.getpid()


def out_of_step() -> None:
    """Let worker 0 start an exchange that worker 1 does not join."""
    if dist.get_rank() == 0:
        dist.all_reduce(torch.ones(1), async_op=True)
    raise KeyError("a mistake")


def hang() -> None:
    time.sleep(60)


def is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.timeout(180)
def test_failures_and_hangs_end_with_their_job(tmp_path):
    workers = Workers(tmp_path)
    try:
        first = workers.run(who)
        assert [rank for rank, _ in first] == [0, 1]
        assert [failure.kind for failure in workers.failures(out_of_step)] == ["KeyError"] * 2
        assert workers.run(who) == first
        assert [failure.kind for failure in workers.failures(hang, timeout=1)] == ["Silence"] * 2
        assert [process for _, process in first if is_alive(process)] == []
        (again,) = workers.run(who, count=1)
        assert again[0] == 0
    finally:
        workers.close()
    assert not is_alive(again[1])
    assert workers.processes == []
