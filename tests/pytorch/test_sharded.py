"""The balancer of a model with `fully_shard`: gradients, samples, agreement, errors."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable
from contextlib import redirect_stderr
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from evenstep.core.rows import sealed
from evenstep.core.stock_order import stock_order
from evenstep.errors import DivergedPlans, StateFileError
from evenstep.pytorch import Balancer, ShardedBalancer
from tests.pytorch.setup import FEATURES, Indices, data, distance, gradients, net, parameters
from tests.pytorch.sharding import shard, sharded, whole, whole_gradients

pytestmark = pytest.mark.distributed

SEED = 3


def train(total, num_samples, **settings):
    """Train two epochs; return gradients, parameters at the end, batch lengths and mean losses."""
    with sharded(total, **settings) as (balancer, model):
        loader = balancer.loader(data(num_samples), seed=SEED, pad=False)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        seen, sizes, losses = [], [], []
        for _ in range(2):
            for samples, labels in loader:
                loss = cross_entropy(model(samples), labels)
                balancer.weigh(loss).backward()
                seen.append(whole_gradients(model))
                sizes.append(len(samples))
                with warnings.catch_warnings():
                    warnings.simplefilter("error")
                    losses.append(balancer.mean(loss))
                optimizer.step()
                optimizer.zero_grad()
        assert balancer.iteration == len(sizes)
        return seen, whole(p.detach() for p in model.parameters()), sizes, losses


def train_joined(total, num_samples):
    """Do the same in one process that has all samples."""
    model = net()
    samples, labels = data(num_samples)[:]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    seen, losses = [], []
    for epoch in range(2):
        for joined in torch.from_numpy(stock_order(num_samples, SEED, epoch)).split(total):
            loss = cross_entropy(model(samples[joined]), labels[joined])
            loss.backward()
            seen.append(gradients(model))
            losses.append(loss.item())
            optimizer.step()
            optimizer.zero_grad()
    return seen, parameters(model), losses


@pytest.mark.parametrize(
    ("settings", "num_samples", "sizes"),
    [
        # The tail of five samples has a batch for everybody, one of two samples has not.
        ({"total": 64, "shares": [8, 24, 32]}, 2 * 64 + 5, [[8, 8, 1], [24, 24, 2], [32, 32, 2]]),
        ({"total": 16, "shares": [1, 5, 10]}, 2 * 16 + 2, [[1, 1, 1], [5, 5, 1], [10, 10, 1]]),
        # A worker without samples borrows one, at weight 0.
        ({"total": 16, "shares": [1e-3, 5, 11], "minimum": 0}, 2 * 16 + 5,
         [[1, 1, 1], [5, 5, 1], [11, 11, 4]]),
    ],
    ids=["unequal", "short tail", "benched"],
)  # fmt: skip
def test_training_is_that_on_the_joined_batches(workers, settings, num_samples, sizes):
    wanted, at_the_end, losses = train_joined(settings["total"], num_samples)
    answers = workers.run(train, count=3, num_samples=num_samples, **settings)
    for theirs, finally_, _, means in answers:
        errors = [distance(got, joined) for got, joined in zip(theirs, wanted, strict=True)]
        assert max(errors) <= 1e-6
        assert distance(finally_, at_the_end) <= 1e-6
        assert means == pytest.approx(losses, rel=1e-6)
    assert [lengths for _, _, lengths, _ in answers] == [2 * lengths for lengths in sizes]


def accumulate():
    """Return the gradient of two batches that are exchanged at once."""
    with sharded(12, shares=[1, 3]) as (balancer, model):
        for k, (samples, labels) in enumerate(balancer.loader(data(24), shuffle=False)):
            model.set_requires_gradient_sync(k == 1)
            balancer.weigh(cross_entropy(model(samples), labels) / 2).backward()
        return whole_gradients(model), balancer.iteration


def test_accumulated_gradient_is_the_mean_over_the_joined_batches(workers):
    model = net()
    samples, labels = data(24)[:]
    cross_entropy(model(samples), labels).backward()
    for gradient, iteration in workers.run(accumulate):
        assert distance(gradient, gradients(model)) <= 1e-6
        assert iteration == 2


def step(balancer: ShardedBalancer, model: Any) -> None:
    """Train on something, so that the iteration comes to its end."""
    balancer.weigh(model(torch.ones(2, FEATURES)).mean()).backward()


def visit(num_workers):
    """Return the samples of this worker in two epochs."""
    with sharded(10, shares=[1, 4]) as (balancer, model):
        loader = balancer.loader(Indices(33), pad=False, num_workers=num_workers)
        epochs: list[list[int]] = [[], []]
        for epoch in epochs:
            for indices, _ in loader:
                epoch += indices.tolist() if balancer._loop.now.batch.samples else []
                step(balancer, model)
        return epochs


@pytest.mark.parametrize("num_workers", [0, 1])
def test_an_epoch_visits_each_sample_once(workers, num_workers):
    first, second = workers.run(visit, num_workers=num_workers)
    orders = []
    for epoch in range(2):
        assert sorted(first[epoch] + second[epoch]) == list(range(33))
        orders.append(first[epoch])
    assert orders[0] != orders[1]


def normalise():
    """Return the running mean of this worker alone, and as it is at the end of an epoch."""
    with sharded(8, net(batch_norm=True), shares=[1, 3]) as (balancer, model):
        own = torch.zeros(1)
        for samples, labels in balancer.loader(data(8 * 3)):
            balancer.weigh(cross_entropy(model(samples), labels)).backward()
            own = model[1].running_mean.clone()
        return own, model[1].running_mean, balancer.minimum


def test_running_statistics_are_averaged_by_size_at_the_end_of_an_epoch(workers):
    (first, averaged, minimum), (second, same, _) = workers.run(normalise)
    assert minimum == 2
    assert not torch.allclose(first, second)
    torch.testing.assert_close(averaged, first * 0.25 + second * 0.75)
    assert torch.equal(averaged, same)


def in_a_group():
    """Train in workers 1 and 2 of three."""
    group = dist.new_group([1, 2])
    if dist.get_rank() == 0:
        return None
    model: Any = shard(net(), mesh=DeviceMesh.from_group(group, "cpu"))
    balancer = ShardedBalancer(model, 12, shares=[1, 3], summary=False)
    loader = balancer.loader(data(12), shuffle=False)
    for samples, labels in loader:
        balancer.weigh(cross_entropy(model(samples), labels)).backward()
    balancer.close()
    return balancer.worker, whole_gradients(model), balancer.mean(balancer.worker)


def test_balancer_works_in_a_group_of_some_workers(workers):
    _, first, second = workers.run(in_a_group, count=3)
    model = net()
    samples, labels = data(12)[:]
    cross_entropy(model(samples), labels).backward()
    for worker, (position, gradient, mean) in enumerate([first, second]):
        assert position == worker
        assert distance(gradient, gradients(model)) <= 1e-6
        assert mean == pytest.approx(9 / 12)


def diverge():
    with sharded(12) as (balancer, model):
        loader = balancer.loader(Indices(24))
        loader.set_epoch(balancer.worker)
        seen = 0
        try:
            for _ in loader:
                seen += 1
                step(balancer, model)
        except DivergedPlans as error:
            return seen, str(error)
    return seen, ""


def test_workers_in_different_epochs_stop_at_the_end_of_the_epoch(workers):
    for seen, message in workers.run(diverge):
        assert seen == 2
        assert "worker 1 and worker 0 did not; do all workers go through the same" in message


def change_total(path):
    """Return the gradients of two totals, and the plan and position after a checkpoint."""
    with sharded(8, shares=[1, 3]) as (balancer, model):
        loader = balancer.loader(data(48), shuffle=False)
        seen = []
        for samples, labels in loader:
            balancer.weigh(cross_entropy(model(samples), labels)).backward()
            seen.append(whole_gradients(model))
            model.zero_grad()
            balancer.total = 20
            if balancer.iteration == 2:
                break
        torch.save((balancer.state_dict(), loader.state_dict()), f"{path}/{balancer.worker}")
    with sharded(8) as (balancer, model):
        loader = balancer.loader(data(48), shuffle=False)
        saved, position = torch.load(f"{path}/{balancer.worker}")
        balancer.load_state_dict(saved)
        loader.load_state_dict(position)
        return seen, balancer.total, balancer.plan.sizes.tolist(), len(loader), loader.epochs.offset


def test_total_can_change(workers, tmp_path):
    samples, labels = data(48)[:]
    for seen, total, sizes, length, offset in workers.run(change_total, path=str(tmp_path)):
        for gradient, part in zip(seen, (slice(0, 8), slice(8, 28)), strict=True):
            model = net()
            cross_entropy(model(samples[part]), labels[part]).backward()
            assert distance(gradient, gradients(model)) <= 1e-6
        assert (total, sizes, length, offset) == (20, [5, 15], 3, 28)


def different_totals():
    with sharded(8) as (balancer, _):
        balancer.total = 10 + balancer.worker


def test_totals_that_differ_are_refused(workers):
    for failure in workers.failures(different_totals):
        assert failure.kind == "InvalidSetting"
        assert "total must be the same on all workers, got 10" in failure.message


def forget(when):
    """Leave out `weigh`: in the first iteration, or where nothing is trained on."""
    with sharded(12, shares=[1, 3]) as (balancer, model):
        loader, evaluation = balancer.loader(data(24)), balancer.loader(data(36))
        samples, labels = data(6)[:]
        # Not a batch of ours: nothing to weigh.
        cross_entropy(model(samples), labels).backward()
        for samples, labels in loader:
            loss = cross_entropy(model(samples), labels)
            if when == "training":
                loss.backward()
            weighed = balancer.weigh(loss)
            with torch.no_grad():
                for others, wanted in evaluation:
                    balancer.weigh(cross_entropy(model(others), wanted))
            assert weighed.item() / loss.item() == pytest.approx([0.5, 1.5][balancer.worker])
            weighed.backward()
        # Watched for as long as need be, and no longer.
        assert all(p._post_accumulate_grad_hooks == {} for p in model.parameters())
        return balancer.iteration


def test_loss_that_was_not_weighed_stops_the_first_iteration(workers):
    for failure in workers.failures(forget, when="training"):
        assert failure.kind == "InvalidSetting"
        assert "the loss must be weighed before its backward pass" in failure.message
        assert "got gradients of iteration 0 without" in failure.message


def test_evaluation_needs_no_weighing_and_interrupts_nothing(workers):
    assert workers.run(forget, when="never") == [2, 2]


def restore(path):
    """Return plan, lines and the rest of an epoch that continues after a checkpoint."""
    with sharded(10, shares=[1, 4]) as (balancer, model):
        loader = balancer.loader(Indices(40))
        for k, _ in enumerate(loader):
            step(balancer, model)
            if k == 1:
                break
        state = balancer.state_dict(), loader.state_dict()
    with sharded(10) as (balancer, model):
        loader = balancer.loader(Indices(40))
        torch.save(state, f"{path}/{balancer.worker}")
        saved, position = torch.load(f"{path}/{balancer.worker}")
        balancer.load_state_dict(saved)
        loader.load_state_dict(position)
        rest = 0
        for indices, _ in loader:
            rest += len(indices)
            step(balancer, model)
        with pytest.raises(StateFileError, match=r"must be 2 whole numbers, got \[1, 2, 7\]"):
            balancer.load_state_dict(sealed({**saved, "sizes": [1, 2, 7]}))
        with pytest.raises(StateFileError, match=r"add up to 10, got \[1, 8\]"):
            balancer.load_state_dict(sealed({**saved, "sizes": [1, 8]}))
        with pytest.raises(StateFileError, match="does not fit its digest"):
            balancer.load_state_dict({**saved, "sizes": [3, 7]})
        return balancer.plan.sizes.tolist(), rest, balancer.iteration


def test_plan_goes_on_after_a_checkpoint(workers, tmp_path):
    assert workers.run(restore, path=str(tmp_path)) == [([2, 8], 4, 4), ([2, 8], 16, 4)]


def first_sizes(**settings):
    printed = io.StringIO()
    with redirect_stderr(printed), sharded(60, summary=True, **settings) as (balancer, _):
        pass
    return balancer.plan.sizes.tolist(), printed.getvalue()


def test_first_sizes_are_even_or_in_proportion_and_keep_to_the_limits(workers):
    (even, printed), (_, silent) = workers.run(first_sizes)
    assert even == [30, 30]
    assert printed == "evenstep: batch sizes 30/30, not calibrated\n"
    assert silent == ""
    assert workers.run(first_sizes, shares=[1, 5])[0][0] == [10, 50]
    assert workers.run(first_sizes, shares=[1, 5], maximum=40)[0][0] == [20, 40]
    assert workers.run(first_sizes, shares=[1, 5], minimum=16)[0][0] == [16, 44]
    assert workers.run(first_sizes, shares=[1, 5], granularity=4)[0][0] == [8, 52]


def mistake(which):
    """Make a mistake that must be found before the first iteration."""
    worker = dist.get_rank()
    if which == "no process group":
        dist.destroy_process_group()
        try:
            ShardedBalancer(net(), 8)
        finally:
            dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    if which == "into the other":
        Balancer(shard(net()), 8)
    with torch.device("meta" if which == "meta" else "cpu"):
        made = net()
    models: dict[str, Callable[[], torch.nn.Module]] = {
        "not sharded": net,
        "only layers": lambda: torch.nn.Sequential(shard(net())),
        "DDP": lambda: DistributedDataParallel(net()),
        "two dimensions": lambda: shard(
            net(), mesh=init_device_mesh("cpu", (2, 1), mesh_dim_names=("replicate", "shard"))
        ),
        "no parameters": lambda: shard(torch.nn.Tanh()),
    }
    arguments: dict[str, tuple[Any, dict[str, Any]]] = {
        "total": (1, {}),
        "total of one": (8 + worker, {}),
        "not whole": (8.5, {}),
        "shares": (8, {"shares": [1, 2, 3]}),
        "share": (8, {"shares": [1, 0]}),
        "maximum": (8, {"maximum": 3}),
        "maximum not whole": (8, {"maximum": 6.5}),
        "granularity": (8, {"granularity": 0}),
        "granules": (8, {"granularity": 3}),
    }
    total, settings = arguments.get(which, (8, {}))
    model = models.get(which, lambda: shard(made))()
    balancer = ShardedBalancer(model, total, summary=False, **settings)
    try:
        if which == "two balancers":
            ShardedBalancer(model, 8)
        if which == "no batch":
            balancer.weigh(torch.ones(()))
        unknown: Any = {"batch_size": 4} if which == "batch size" else {}
        balancer.loader(data(20), **unknown)
    finally:
        balancer.close()


MISTAKES = {
    "no process group": "a process group must be there first: start the script with torchrun",
    "into the other": "got one with fully_shard: that goes into a ShardedBalancer",
    "not sharded": "must be sharded with torch.distributed.fsdp.fully_shard(model), the whole of "
    "it after its layers, got Sequential",
    "only layers": "the whole of it after its layers, got Sequential",
    "DDP": "got one wrapped in DistributedDataParallel: that goes into a Balancer",
    "meta": "parameters must be on a device before a balancer is made, got 0.weight on meta",
    "two dimensions": "over a mesh of one dimension, in which every worker has batches of its own, "
    "got 2 dimensions",
    "no parameters": "the model must have sharded parameters, got none",
    "two balancers": "a model can have one ShardedBalancer, and this one has one already",
    "total": "total must be at least 1 for each of 2 workers, got 1",
    "total of one": "total must be the same on all workers, got 8 on worker 0 and 9 on worker 1",
    "not whole": "total must be an integer, got 8.5",
    "shares": "static shares must be one per worker (2), got 3",
    "share": "static share must be finite and > 0, got 0.0 for worker 1",
    "maximum": "add up to 6, less than the total 8",
    "maximum not whole": "maximum must be an integer, got 6.5",
    "granularity": "granularity must be >= 1, got 0",
    "granules": "the total must be a multiple of the granularity 3, got 8",
    "no batch": "a loss must be that of a batch from a loader of this balancer",
    "batch size": "batch_size must be left out, as batch sizes are planned: give the balancer",
}


@pytest.mark.parametrize("which", MISTAKES)
def test_mistakes_are_found_before_the_first_iteration(workers, which):
    for failure in workers.failures(mistake, which=which):
        assert failure.kind in ("InvalidSetting", "InfeasibleLimits")
        assert MISTAKES[which] in failure.message
