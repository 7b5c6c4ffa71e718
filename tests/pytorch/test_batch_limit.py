"""Memory: limits given and learned, and running out of it in the middle of an iteration."""

from __future__ import annotations

import resource
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from evenstep.core import UNLIMITED
from evenstep.errors import MemoryExhausted
from evenstep.pytorch import Balancer
from evenstep.pytorch.batch_limit import BatchLimit, is_out_of_memory
from tests.pytorch.setup import (
    FEATURES,
    balanced,
    cycle,
    data,
    distance,
    gradients,
    model_of,
    net,
    parameters,
)

distributed = pytest.mark.distributed
SIZES = cycle((12, 6, 6), (4, 16, 4), (8, 8, 8), (1, 3, 20))


class Oom:
    """Lets memory run out at chosen calls of one worker's loss."""

    def __init__(self, model, worker=None, iteration=None, piece=0, times=1):
        self.model = model
        self._at = (worker, iteration)
        self._piece, self._times = piece, times
        self.iteration = self._calls = 0
        self.pieces = []
        self.failed = 0

    def start(self, iteration):
        self.iteration, self._calls = iteration, 0

    def __call__(self, samples, labels):
        here = (dist.get_rank(), self.iteration) == self._at
        loss = F.cross_entropy(self.model(samples), labels)
        if here and self._calls == self._piece and self.failed < self._times:
            self._calls, self.failed = 0, self.failed + 1
            self.pieces.clear()
            # In the middle of a backward pass, when some gradients are there already.
            hook = self.model.module[0].weight.register_hook(_run_out)
            try:
                loss.backward()
            finally:
                hook.remove()
        self._calls += 1
        self.pieces.append(len(samples))
        return loss


def _run_out(gradient):
    raise torch.OutOfMemoryError("tried to allocate more than there is")


def train(
    oom=None, maximum=None, micro_batches=False, epochs=2, batch_norm=False, policy=SIZES, **ddp
):
    """Train through balancer.backward; return parameters, samples seen, pieces, and plans."""
    model = DistributedDataParallel(net(torch.float64, batch_norm), bucket_cap_mb=0.0002, **ddp)
    balancer = Balancer(
        model, 24, policy=policy, summary=False, maximum=maximum, micro_batches=micro_batches
    )
    loss_of = Oom(model, **(oom or {}))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    dataset = data(24 * 5 + 7, torch.float64)
    loader = balancer.loader(dataset, pad=False)
    seen, pieces, sizes = [], [], []
    for _ in range(epochs):
        for k, (samples, labels) in enumerate(loader):
            loss_of.start(k if _ == 0 else -1)
            balancer.backward(loss_of, samples, labels)
            pieces.append(list(loss_of.pieces))
            loss_of.pieces.clear()
            sizes.append(balancer.plan.sizes.tolist())
            seen.append(samples[:, 0].tolist() if balancer.batch_size else [])
            optimizer.step()
            optimizer.zero_grad()
    balancer.close()
    return parameters(model.module), seen, pieces, sizes, loss_of.failed


def flat(lists):
    return sorted(x for inner in lists for x in inner)


@distributed
@pytest.mark.parametrize(("worker", "iteration"), [(0, 0), (1, 1), (2, 3), (1, 5)])
@pytest.mark.parametrize("piece", [0, 1])
def test_running_out_of_memory_loses_and_doubles_nothing(workers, worker, iteration, piece):
    # With a limit there are pieces, so that memory can run out at a later one.
    settings = {"maximum": [4, 4, 4], "micro_batches": True}
    calm = workers.run(train, count=3, **settings)
    oom = {"worker": worker, "iteration": iteration, "piece": piece}
    stormy = workers.run(train, count=3, oom=oom, **settings)
    assert stormy[worker][4] == 1
    for quiet, after in zip(calm, stormy, strict=True):
        assert distance(after[0], quiet[0]) <= 1e-10
        assert after[1] == quiet[1]
    everything = flat(flat(result[1]) for result in stormy)
    assert everything == sorted(data(24 * 5 + 7, torch.float64)[:][0][:, 0].tolist() * 2)


@distributed
def test_limit_falls_to_half_and_the_others_take_over(workers):
    oom = {"worker": 1, "iteration": 1}
    for sizes in workers.run(run_even, count=3, oom=oom):
        assert sizes[0][1] == 8
        assert all(row[1] == 4 for row in sizes[2:])
        assert all(sum(row) == 24 for row in sizes)


def run_even(oom):
    with balanced(24, policy="equal_finish", warm_up=99) as balancer:
        model = model_of(balancer)
        loss_of = Oom(model, **oom)
        sizes = []
        for k, batch in enumerate(balancer.loader(data(24 * 5))):
            loss_of.start(k)
            balancer.backward(loss_of, *batch)
            sizes.append(balancer.plan.sizes.tolist())
        return sizes


@distributed
def test_memory_that_runs_out_again_and_again_makes_pieces_ever_smaller(workers):
    oom = {"worker": 2, "iteration": 2, "times": 3}
    *_, (_, _, pieces, _, failed) = workers.run(train, count=3, oom=oom, micro_batches=True)
    assert failed == 3
    assert pieces[2] == [1] * 8
    # And it stays so.
    assert max(max(piece) for piece in pieces[2:]) == 1


@distributed
def test_memory_for_not_even_one_sample_is_an_error(workers):
    oom = {"worker": 0, "iteration": 0, "times": 99}
    result = workers.run(exhausted, oom=oom)[0]
    assert result == "memory must suffice for a batch of 1, got none left at 1"


def exhausted(oom):
    if dist.get_rank() != 0:
        return None
    model = DistributedDataParallel(
        net(), process_group=dist.new_group([0], use_local_synchronization=True)
    )
    with pytest.raises(MemoryExhausted) as error:
        balancer = Balancer(model, 8, summary=False)
        loss_of = Oom(model, **oom)
        for batch in balancer.loader(data(8)):
            balancer.backward(loss_of, *batch)
    balancer.close()
    return str(error.value)


@distributed
def test_plan_beyond_the_limit_is_run_in_pieces(workers):
    results = workers.run(train, count=3, maximum=[5, 24, 24], micro_batches=True)
    reference = workers.run(train, count=3)
    assert results[0][2][:4] == [[4, 4, 4], [4], [4, 4], [1]]
    assert results[1][2][:4] == [[6], [16], [8], [3]]
    for result, plain in zip(results, reference, strict=True):
        assert distance(result[0], plain[0]) <= 1e-10


@distributed
@pytest.mark.parametrize(
    "ddp", [{"find_unused_parameters": True}, {"gradient_as_bucket_view": True}]
)
def test_pieces_go_with_other_settings_of_ddp(workers, ddp):
    settings = {"maximum": [5, 7, 24], "micro_batches": True}
    with_ddp = workers.run(train, count=3, **settings, **ddp)
    without = workers.run(train, count=3, **settings)
    assert distance(with_ddp[0][0], without[0][0]) <= 1e-10


@distributed
def test_pieces_keep_to_what_batch_norm_needs(workers):
    settings = {"maximum": 3, "micro_batches": True, "policy": cycle((3, 9, 12), (2, 2, 20))}
    for _, _, pieces, *_ in workers.run(train, count=3, batch_norm=True, **settings):
        assert min(min(piece) for piece in pieces) >= 2


@distributed
def test_per_worker_maximum_caps_the_plan_from_the_start(workers):
    assert workers.run(first_and_last, count=3, maximum=[24, 2, 24])[0] == (
        [11, 2, 11],
        [11, 2, 11],
    )


def first_and_last(**settings):
    with balanced(24, policy="even", **settings) as balancer:
        first = balancer.plan.sizes.tolist()
        for batch in balancer.loader(data(24 * 3)):
            F.cross_entropy(model_of(balancer)(batch[0]), batch[1]).backward()
        return first, balancer.plan.sizes.tolist()


@distributed
def test_limits_that_leave_no_plan_stop_all_workers_alike(workers):
    failures = workers.failures(first_and_last, count=3, maximum=[5, 5, 5])
    assert {failure.kind for failure in failures} == {"InfeasibleLimits"}
    assert "add up to 15, less than the total 24" in failures[0].message


@distributed
def test_micro_batches_without_balancer_backward_are_an_error(workers):
    failures = workers.failures(first_and_last, count=2, micro_batches=True)
    assert "must come from balancer.backward(loss_of, *batch)" in failures[0].message


@distributed
def test_gradients_accumulate_over_batches_run_in_pieces(workers):
    first, second = workers.run(accumulate, count=2)
    assert distance(first, second) == 0
    whole = net(torch.float64)
    samples, labels = data(48, torch.float64)[:]
    F.cross_entropy(whole(samples), labels).backward()
    assert distance(first, gradients(whole)) <= 1e-10


def accumulate():
    with balanced(24, net(torch.float64), policy=cycle((18, 6)), maximum=[4, 4],
                  micro_batches=True) as balancer:  # fmt: skip
        model = model_of(balancer)

        def loss_of(samples, labels):
            return F.cross_entropy(model(samples), labels) / 2

        batches = iter(balancer.loader(data(48, torch.float64), shuffle=False))
        with model.no_sync():
            balancer.backward(loss_of, *next(batches))
        balancer.backward(loss_of, *next(batches))
        return gradients(model)


def count_pieces(oom, sizes):
    """Train on losses that are means over counts, in pieces, one of which runs out of memory."""
    with balanced(24, net(torch.float64), policy=cycle(*sizes), maximum=[4, 4], minimum=0,
                  micro_batches=True) as balancer:  # fmt: skip
        model = model_of(balancer)
        inject = Oom(model, worker=0, iteration=1, piece=2) if oom else Oom(model)

        def loss_of(samples, labels):
            inject(samples, labels)
            counts = labels + 1
            each = F.cross_entropy(model(samples), labels, reduction="none")
            return balancer.weigh((each * counts).sum() / counts.sum(), counts.sum())

        for k, batch in enumerate(balancer.loader(data(48, torch.float64), shuffle=False)):
            inject.start(k)
            model.zero_grad()
            balancer.backward(loss_of, *batch)
        return gradients(model), inject.failed


@distributed
@pytest.mark.parametrize("sizes", [((18, 6), (18, 6)), ((18, 6), (24, 0))])
def test_counts_weigh_pieces_as_they_weigh_batches(workers, sizes):
    whole = net(torch.float64)
    samples, labels = data(48, torch.float64)[24:]
    counts = labels + 1
    each = F.cross_entropy(whole(samples), labels, reduction="none")
    ((each * counts).sum() / counts.sum()).backward()
    for oom in (False, True):
        for worker, (gradient, failed) in enumerate(
            workers.run(count_pieces, oom=oom, sizes=sizes)
        ):
            assert failed == (oom and worker == 0)
            assert distance(gradient, gradients(whole)) <= 1e-10


class Hungry(nn.Module):
    """A net that takes much memory per sample."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(FEATURES, 1)

    def forward(self, samples):
        much = self.layer(samples) * torch.ones(len(samples), 8_000_000)
        return much.exp().mean(dim=1)


@contextmanager
def address_space(more):
    """Limit this process to a number of further bytes."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + more, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def really_run_out():
    worker = dist.get_rank()
    with balanced(16, Hungry(), policy="even") as balancer:
        model = model_of(balancer)
        calls = []

        def loss_of(samples, _):
            calls.append(len(samples))
            return model(samples).mean()

        sizes = []
        with address_space(700_000_000 if worker == 1 else 20_000_000_000):
            for batch in balancer.loader(data(16 * 3)):
                balancer.backward(loss_of, *batch)
                sizes.append(balancer.plan.sizes.tolist())
        return calls, sizes


@distributed
@pytest.mark.timeout(120)
def test_memory_that_really_runs_out_is_survived(workers):
    (calm, _), (stormy, sizes) = workers.run(really_run_out)
    assert calm[0] == 8
    assert stormy[0] == 8
    assert stormy[1] == 4
    assert sizes[-1][1] <= 4
    assert sizes[-1][0] >= 12


class Readings:
    """Emulated memory: some for the model, some for each sample."""

    def __init__(self):
        self.size = 0

    def read(self):
        return 0.2 + 0.01 * self.size


def test_limit_is_learned_from_two_sizes():
    memory = Readings()
    limit = BatchLimit(None, 1, memory)
    for size in (8, 16):
        memory.size = size
        used = [limit.has_run(size) for _ in range(8)]
        assert used[:-1] == [None] * 7
        assert used[-1] == pytest.approx(0.2 + 0.01 * size)
        assert (limit.size == UNLIMITED) == (size == 8)
    # 0.2 + 0.01 x <= 0.95
    assert limit.size == pytest.approx(75, abs=1)


def test_given_limit_is_not_lifted_by_readings():
    memory = Readings()
    limit = BatchLimit(20, 1, memory)
    for size in (8, 16):
        memory.size = size
        for _ in range(8):
            limit.has_run(size)
    assert limit.size == 20


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (torch.OutOfMemoryError("CUDA out of memory"), True),
        (MemoryError(), True),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried 9 bytes"), True),
        (RuntimeError("CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (ValueError("out of memory"), False),
    ],
)
def test_what_counts_as_out_of_memory(error, expected):
    assert is_out_of_memory(error) == expected


def test_sizes_of_the_table_add_up():
    assert {int(np.sum(sizes)) for sizes in SIZES.table} == {24}
