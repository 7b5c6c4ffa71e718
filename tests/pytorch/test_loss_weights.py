"""Losses weighed by counts: gradients are those of the mean over all workers' tokens."""

from __future__ import annotations

import warnings
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from evenstep.pytorch import Balancer
from evenstep.pytorch.collective import InflightTensors
from evenstep.pytorch.loss_weights import LossWeights, as_count
from tests.pytorch.setup import (
    balanced,
    cycle,
    data,
    distance,
    gradients,
    model_of,
    net,
    note_reports,
)

pytestmark = pytest.mark.distributed

HOOKS: dict[str, Any] = {
    "allreduce": (None, default_hooks.allreduce_hook),
    "bf16": (None, default_hooks.bf16_compress_hook),
}


def tokens(count, dtype):
    """Return samples, labels, and which of them are tokens: very many, or very few, by turns."""
    samples, labels = data(count, dtype)[:]
    drawn = torch.rand(count, generator=torch.Generator().manual_seed(5))
    return samples, labels, drawn < torch.linspace(0.02, 0.98, count)


def masked(model, samples, labels, kept):
    """Return the mean over the tokens, and how many they are."""
    losses = cross_entropy(model(samples), labels, reduction="none")
    return losses[kept].sum() / kept.sum(), kept.sum()


def joined(count, dtype):
    """Return the gradient that one worker with all tokens computes."""
    model = net(dtype)
    masked(model, *tokens(count, dtype))[0].backward()
    return gradients(model)


def weighed(table, pieces=1, dtype="float32", ddp=None, hook=None, skip=False):
    """Return how far the gradient of each exchange is from that of all its tokens."""
    chosen = getattr(torch, dtype)
    total = sum(table[0])
    count = total * pieces
    model = DistributedDataParallel(net(chosen), **(ddp or {}))
    balancer = Balancer(
        model, total, policy=cycle(*table), minimum=0, summary=False, warm_up=0,
        comm_hook=HOOKS[hook] if hook else None,
    )  # fmt: skip
    noted = note_reports(balancer)
    data_set = torch.utils.data.TensorDataset(*tokens(count, chosen))
    loader = balancer.loader(data_set, shuffle=False)
    errors, counts = [], []
    # Twice, as buckets are rebuilt after the first time.
    for _ in range(2):
        for i, batch in enumerate(loader):
            with model.no_sync() if i % pieces < pieces - 1 else nullcontext():
                loss, number = masked(model, *batch)
                counts.append(int(number))
                if skip:
                    # A loss that nobody calls backward on does not count.
                    balancer.weigh(loss, 1000)
                balancer.weigh(loss, number).backward()
        errors.append(distance(gradients(model), joined(count, chosen)))
        model.zero_grad()
    balancer.close()
    assert all(reports.observed.any() for reports, _ in noted)
    return max(errors), counts


CASES: dict[str, dict[str, Any]] = {
    "one bucket": {},
    "several buckets": {"ddp": {"bucket_cap_mb": 0.0001}},
    "bucket views": {"ddp": {"gradient_as_bucket_view": True, "bucket_cap_mb": 0.0001}},
    "hook": {"hook": "allreduce"},
    "hook, several buckets": {"hook": "allreduce", "ddp": {"bucket_cap_mb": 0.0001}},
    "losses left out": {"skip": True},
}
DTYPES = [("float32", 1e-6), ("float64", 1e-10)]


@pytest.mark.parametrize(("dtype", "tolerance"), DTYPES)
@pytest.mark.parametrize("case", CASES)
def test_gradient_is_that_of_all_tokens(workers, case, dtype, tolerance):
    results = workers.run(weighed, table=[(12, 52)], dtype=dtype, **CASES[case])
    for error, _ in results:
        assert error <= tolerance
    # Or weighing by samples would do as well.
    few, many = (counts[0] for _, counts in results)
    assert many > 10 * few


@pytest.mark.parametrize("ddp", [None, {"bucket_cap_mb": 0.0001}], ids=["one bucket", "buckets"])
@pytest.mark.parametrize(("dtype", "tolerance"), DTYPES)
def test_accumulated_gradients_are_those_of_all_tokens(workers, dtype, tolerance, ddp):
    table = [(5, 11), (12, 4), (8, 8), (1, 15)]
    for error, _ in workers.run(weighed, table=table, pieces=3, dtype=dtype, ddp=ddp):
        assert error <= tolerance


@pytest.mark.parametrize("hook", [None, "allreduce"])
@pytest.mark.parametrize("ddp", [None, {"bucket_cap_mb": 0.0001}], ids=["one bucket", "buckets"])
def test_borrowed_samples_do_not_count(workers, ddp, hook):
    arguments = {"count": 3, "dtype": "float64", "ddp": ddp, "hook": hook}
    for error, _ in workers.run(weighed, table=[(20, 0, 44)], **arguments):
        assert error <= 1e-10
    # Nor while accumulating, where the same worker has samples of its own, too.
    table = [(20, 0, 44), (0, 40, 24), (30, 34, 0)]
    for error, _ in workers.run(weighed, table=table, pieces=3, **arguments):
        assert error <= 1e-10


def test_hook_of_the_user_gets_weighed_gradients(workers):
    for error, _ in workers.run(weighed, table=[(12, 52)], hook="bf16"):
        # Rounding to bf16 must show, or the hook was not called.
        assert 1e-5 < error <= 2e-2


def test_gradients_that_cannot_carry_counts_are_divided_by_them(workers):
    for error, _ in workers.run(weighed, table=[(12, 52)], dtype="bfloat16"):
        assert error <= 5e-2


def without_tokens(everywhere, buckets):
    """Return the gradient where one worker or all have no token, and a mean that is no number."""
    model = DistributedDataParallel(net(), bucket_cap_mb=0.0001 if buckets else 25)
    balancer = Balancer(model, 16, policy=cycle((4, 12)), summary=False)
    for samples, labels in balancer.loader(data(32), shuffle=False):
        model.zero_grad()
        kept = torch.full(labels.shape, not (everywhere or balancer.worker == 0))
        losses = cross_entropy(model(samples), labels, reduction="none")
        balancer.weigh((losses * kept).sum() / kept.sum(), kept.sum()).backward()
    balancer.close()
    return gradients(model)


@pytest.mark.parametrize("buckets", [False, True])
def test_batches_without_tokens_add_nothing(workers, buckets):
    for gradient in workers.run(without_tokens, everywhere=True, buckets=buckets):
        assert (gradient == 0).all()
    model = net()
    samples, labels = data(32)[20:]
    cross_entropy(model(samples), labels).backward()
    for gradient in workers.run(without_tokens, everywhere=False, buckets=buckets):
        assert distance(gradient, gradients(model)) <= 1e-6


def exchanged_twice():
    """Exchange gradients twice per batch, as adversarial training does."""
    with balanced(16, net(torch.float64), policy=cycle((3, 13))) as balancer:
        model = model_of(balancer)
        errors = []
        for batch in balancer.loader(
            torch.utils.data.TensorDataset(*tokens(16, torch.float64)), shuffle=False
        ):
            for _ in range(2):
                model.zero_grad()
                balancer.weigh(*masked(model, *batch)).backward()
                errors.append(distance(gradients(model), joined(16, torch.float64)))
        return max(errors)


def test_every_exchange_has_counts_of_its_own(workers):
    assert max(workers.run(exchanged_twice)) <= 1e-10


def partly(which, buckets=False):
    """Weigh some losses and not others."""
    model = DistributedDataParallel(net(), bucket_cap_mb=0.0001 if buckets else 25)
    balancer = Balancer(model, 16, policy=cycle((4, 12)), summary=False)
    for i, (samples, labels) in enumerate(balancer.loader(data(16 * 4), shuffle=False)):
        with model.no_sync() if i % 2 == 0 else nullcontext():
            loss = cross_entropy(model(samples), labels)
            weighs = balancer.worker == 1 if which == "workers" else i % 2 == 0
            (balancer.weigh(loss, 7) if weighs else loss).backward()
    balancer.close()


@pytest.mark.parametrize("buckets", [False, True])
def test_losses_weighed_on_some_workers_only_stop_the_job(workers, buckets):
    for failure in workers.failures(partly, which="workers", buckets=buckets):
        assert failure.kind == "PartlyWeighed"
        assert "but worker 1 called it and worker 0 did not" in failure.message


def test_losses_weighed_in_some_passes_only_stop_the_job(workers):
    for failure in workers.failures(partly, which="passes"):
        assert failure.kind == "PartlyWeighed"
        assert "worker 0 called it for some of them" in failure.message


def means():
    with balanced(16, policy=cycle((4, 12), (16, 0)), minimum=0) as balancer:
        found = []
        for samples, _ in balancer.loader(data(32), shuffle=False):
            count = [10, 30][balancer.worker]
            # As a loss is, before it goes back: not a reason to warn.
            value = torch.tensor(float(balancer.worker), requires_grad=True)
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                found.append(balancer.mean(value, count=torch.tensor(count)))
            model_of(balancer)(samples).sum().backward()
        return found


def test_mean_weighs_by_counts_where_there_are_some(workers):
    assert workers.run(means) == [[0.75, 0.0], [0.75, 0.0]]


@pytest.mark.parametrize("count", [-1, float("nan"), float("inf")])
def test_count_must_be_a_number(count):
    with pytest.raises(ValueError, match="count must be a finite number >= 0, got"):
        as_count(count)


@pytest.mark.parametrize("count", [0, 1, 2**24 + 1, 123_456_789_123])
def test_count_travels_without_rounding(count):
    loss_weights = LossWeights(total=8)
    loss_weights.weigh(torch.ones((), requires_grad=True), count).backward()
    slot = loss_weights.slot()
    assert slot.dtype == "float32"
    assert int(slot.astype("float64").sum()) == count


class Bucket:
    """Stands in for one of two gradient buckets."""

    def __init__(self, index):
        self.index = lambda: index
        self.is_last = lambda: index == 1
        self.buffer = lambda: torch.ones(2)


@pytest.mark.parametrize("fails", [False, True])
def test_no_bucket_waits_for_ever_where_the_last_one_fails(fails):
    loss_weights = LossWeights(total=8)
    loss_weights.weigh(torch.ones((), requires_grad=True), 4).backward()
    slots = torch.tensor(loss_weights.slot()).view(1, 2)
    summed: list[Any] = [torch.futures.Future(), torch.futures.Future()]
    buckets: list[Any] = [Bucket(0), Bucket(1)]
    divided = [
        loss_weights.divided(summed[i], buckets[i], lambda: slots, InflightTensors())
        for i in range(2)
    ]
    summed[0].set_result(torch.ones(2))
    assert not divided[0].done()
    if fails:
        summed[1].set_exception(RuntimeError("a worker is gone"))
        assert all(bucket.done() for bucket in divided)
        for bucket in divided:
            with pytest.raises(RuntimeError, match="a worker is gone"):
                bucket.wait()
    else:
        summed[1].set_result(torch.ones(2))
        assert [bucket.wait().tolist() for bucket in divided] == [[2.0, 2.0]] * 2
