"""Gradients that are not finite on one worker: worker 0 warns once, and names the worker."""

from __future__ import annotations

import logging
import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from evenstep import runlog
from evenstep.pytorch import Balancer
from evenstep.pytorch.finite import FiniteCheck
from tests.pytorch.setup import FEATURES, cycle, data, net

TOTAL = 8


class Kept(logging.Handler):
    """Keeps the messages of the package's logger."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


def spoilt(at, value=math.nan, dtype="float32", sizes=(4, 4), how="", log=None):
    """Train with a loss of this value on worker 1 in iteration `at`; return what was logged."""
    kept, rank = Kept(), dist.get_rank()
    logging.getLogger("evenstep").addHandler(kept)
    chosen = getattr(torch, dtype)
    model = DistributedDataParallel(net(chosen), bucket_cap_mb=1e-5)
    hook: Any = (None, default_hooks.bf16_compress_hook) if how == "hook" else None
    balancer = Balancer(
        model, TOTAL, policy=cycle(sizes), minimum=0, summary=False, log=log, comm_hook=hook,
        loss="mean", name=f"machine-{rank}",
    )  # fmt: skip
    other = DistributedDataParallel(net(chosen))
    if how == "include":
        balancer.include(other)
    try:
        for k, (samples, _) in enumerate(balancer.loader(data(TOTAL * 5, chosen))):
            factor = value if k == at and rank == 1 else 1.0
            if how == "include":
                (other(samples).sum() * factor).backward()
                factor = 1.0
            loss = model(samples).sum() * factor
            (balancer.weigh(loss, len(samples)) if how == "weigh" else loss).backward()
            model.zero_grad()
    finally:
        balancer.close()
        logging.getLogger("evenstep").removeHandler(kept)
    return kept.messages


@pytest.mark.distributed
@pytest.mark.parametrize(
    "case",
    [
        {"at": 2, "value": math.nan},
        {"at": 4, "value": math.inf},
        {"at": 2, "dtype": "float64"},
        {"at": 2, "dtype": "bfloat16"},
        {"at": 2, "how": "hook"},
        {"at": 2, "how": "weigh"},
        {"at": 2, "how": "include"},
    ],
    ids=str,
)
def test_worker_0_names_the_worker_and_the_iteration_once(workers, case, tmp_path):
    path = tmp_path / "run.jsonl"
    first, second = workers.run(spoilt, log=str(path), **case)
    assert second == []
    (message,) = first
    expected = f"machine-1 were not finite (NaN or infinity) in iteration {case['at']}"
    assert expected in message
    notes = [event for event in runlog.read(path).events if event.kind == "note"]
    assert [note.iteration for note in notes] == [case["at"]]
    assert expected in (notes[0].text or "")


@pytest.mark.distributed
@pytest.mark.parametrize("case", [{"at": 9}, {"at": 2, "sizes": (8, 0)}], ids=str)
def test_nothing_is_said_of_finite_gradients_and_of_those_at_no_weight(workers, case):
    assert workers.run(spoilt, **case) == [[], []]


def mark_of(*gradients: torch.Tensor) -> float:
    check = FiniteCheck(0, ["a", "b"], lambda iteration, text: None)
    for gradient in gradients:
        check.add(gradient)
    row = torch.zeros(3)
    check.write(row[-1])
    assert row[:-1].tolist() == [0, 0]
    return float(row[-1])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.complex64])
def test_marks_are_nan_only_where_a_gradient_is_not_finite(dtype):
    largest = torch.finfo(dtype).max if dtype == torch.float16 else 1e30
    good = torch.full((1000,), largest, dtype=dtype)
    assert mark_of(good, -good) == 0
    for value in (math.nan, math.inf, -math.inf):
        bad = good.clone()
        bad[500] = value
        assert math.isnan(mark_of(good, bad))
        assert math.isnan(mark_of(bad, good))
    assert math.isnan(mark_of(torch.tensor([math.inf, -math.inf], dtype=dtype)))


def test_marks_begin_again_after_each_exchange():
    check = FiniteCheck(0, ["a"], lambda iteration, text: None)
    row = torch.zeros(2)
    check.add(torch.tensor([math.nan]))
    check.write(row[0])
    check.add(torch.ones(FEATURES))
    check.write(row[1])
    assert np.isfinite(row.numpy()).tolist() == [False, True]


def test_all_workers_of_the_first_iteration_are_named(caplog):
    noted: list[tuple[int, str]] = []
    check = FiniteCheck(0, ["a", "b", "c"], lambda *note: noted.append(note))
    check.see(5, np.array([True, True, True]))
    assert noted == []
    check.see(6, np.array([False, True, False]))
    check.see(7, np.array([False, False, False]))
    ((iteration, text),) = noted
    assert iteration == 6
    assert " a, c " in text
    assert len(caplog.records) == 1
