"""Compiled models: fifty batch sizes, a few compilations, and the parameters of plain BSP."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.backends.registry import lookup_backend
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from evenstep.pytorch import Balancer
from tests.pytorch.setup import cycle, data, distance, net, note_reports, parameters

pytestmark = [pytest.mark.distributed, pytest.mark.compatibility]

TOTAL, ITERATIONS = 60, 50
_FIRST = random.Random(3).sample(range(1, TOTAL), ITERATIONS)
SIZES = [(first, TOTAL - first) for first in _FIRST]


class Counting:
    """A backend that needs no C compiler, and counts what it compiles."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, graph: Any, inputs: Any) -> Any:
        self.count += 1
        return lookup_backend("aot_eager")(graph, inputs)


def wrapped(how: str, **options: Any) -> tuple[DistributedDataParallel, nn.Module]:
    """Return a DDP model, and what a script calls."""
    inner = net(torch.float64)
    if how == "inside":
        model = DistributedDataParallel(torch.compile(inner, **options))
        return model, model
    if how == "in place":
        inner.compile(**options)
    model = DistributedDataParallel(inner)
    if how == "all in place":
        model.compile(**options)
    if how == "around":
        return model, torch.compile(model, **options)  # type: ignore[return-value]
    return model, model


def trained(how, table, dynamic=None):
    """Return the parameters, how often was compiled, and how many sizes there were."""
    torch._dynamo.reset()
    backend = Counting()
    model, called = wrapped(how, backend=backend, dynamic=dynamic)
    sizing: dict[str, Any] = {"policy": cycle(*table)} if table else {"mode": "off"}
    balancer = Balancer(called, TOTAL, summary=False, warm_up=0, **sizing)
    noted = note_reports(balancer)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    sizes = set()
    for samples, labels in balancer.loader(data(TOTAL * ITERATIONS, torch.float64)):
        sizes.add(len(samples))
        cross_entropy(called(samples), labels).backward()
        optimizer.step()
        optimizer.zero_grad()
    balancer.close()
    assert all(reports.observed.all() for reports, _ in noted)
    return parameters(model), backend.count, len(sizes)


@pytest.mark.parametrize("dynamic", [None, False])
@pytest.mark.parametrize("how", ["inside", "around", "in place", "all in place"])
def test_sizes_that_change_compile_no_model_anew(workers, how, dynamic):
    plain, _, _ = workers.run(trained, how="not at all", table=None)[0]
    for result, compilations, sizes in workers.run(
        trained, how=how, table=SIZES, dynamic=dynamic, timeout=100
    ):
        assert sizes == ITERATIONS
        # One for any number of samples, and perhaps one for a single sample.
        assert 1 <= compilations <= 2
        assert distance(result, plain) <= 1e-10


def test_where_sizes_stay_the_compiler_is_left_to_know_them(workers):
    for _, compilations, sizes in workers.run(trained, how="inside", table=None):
        assert (compilations, sizes) == (1, 1)
