"""The aggregated gradient is that of the joined batch, whatever the sizes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from evenstep.core import frozen
from evenstep.pytorch import Balancer
from evenstep.training.iteration import Share
from tests.pytorch.setup import (
    balanced,
    cycle,
    data,
    distance,
    gradients,
    model_of,
    net,
    note_reports,
    parameters,
)

pytestmark = pytest.mark.distributed


def joined_gradient(count: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return the gradient that one worker with all samples computes."""
    model = net(dtype)
    samples, labels = data(count, dtype)[:]
    cross_entropy(model(samples), labels).backward()
    return gradients(model)


def weighted(sizes, dtype="float32", ddp=None, hook=None):
    """Return how far the gradient of one iteration is from the joined batch's, and the rows."""
    chosen = getattr(torch, dtype)
    total = sum(sizes)
    model = DistributedDataParallel(net(chosen), **(ddp or {}))
    hooks: dict[str, Any] = {
        "bf16": (None, default_hooks.bf16_compress_hook),
        "power": (powerSGD_hook.PowerSGDState(None, 4, start_powerSGD_iter=2),
                  powerSGD_hook.powerSGD_hook),
    }  # fmt: skip
    balancer = Balancer(
        model, total, policy=cycle(sizes), minimum=0, summary=False, warm_up=0,
        comm_hook=hooks[hook] if hook else None,
    )  # fmt: skip
    noted = note_reports(balancer)
    for samples, labels in balancer.loader(data(total, chosen), shuffle=False):
        cross_entropy(model(samples), labels).backward()
    balancer.close()
    error = distance(gradients(model), joined_gradient(total, chosen))
    ((reports, done),) = noted
    assert (done.sizes == sizes).all()
    return error, reports.batch_sizes.tolist(), reports.observed.tolist()


def test_gradient_of_8_24_32_is_that_of_the_joined_batch(workers):
    for error, sizes, observed in workers.run(weighted, count=3, sizes=[8, 24, 32]):
        assert error <= 1e-6
        assert sizes == [8, 24, 32]
        assert observed == [True] * 3


@pytest.mark.parametrize("seed", range(3))
def test_gradient_of_random_sizes_is_that_of_the_joined_batch(workers, seed):
    sizes = np.random.default_rng(seed).multinomial(40, [0.1, 0.3, 0.6]).tolist()
    for error, _, _ in workers.run(weighted, count=3, sizes=sizes):
        assert error <= 1e-6


def test_worker_without_samples_adds_nothing(workers):
    for error, sizes, observed in workers.run(weighted, count=3, sizes=[0, 5, 11]):
        assert error <= 1e-6
        assert sizes == [0, 5, 11]
        assert observed == [False, True, True]


@pytest.mark.parametrize(
    "ddp",
    [
        {"gradient_as_bucket_view": True},
        {"bucket_cap_mb": 0.0001},
        {"static_graph": True},
        {"find_unused_parameters": True},
    ],
    ids=lambda ddp: next(iter(ddp)),
)
def test_gradient_is_right_with_settings_of_ddp(workers, ddp):
    for error, sizes, _ in workers.run(weighted, sizes=[3, 13], ddp=ddp):
        assert error <= 1e-6
        # A static graph has one iteration more that counts as warming up.
        assert sizes == ([0, 0] if "static_graph" in ddp else [3, 13])


@pytest.mark.parametrize(("hook", "tolerance"), [("bf16", 1e-2), ("power", 1e-6)])
def test_hook_of_the_user_applies_and_reports_travel_beside_it(workers, hook, tolerance):
    for error, sizes, observed in workers.run(weighted, sizes=[3, 13], hook=hook):
        # Rounding to bf16 must show, or the hook was not called.
        assert (1e-5 if hook == "bf16" else 0) < error <= tolerance
        assert sizes == [3, 13]
        assert observed == [True, True]


def test_reports_travel_beside_gradients_that_cannot_carry_them(workers):
    for error, sizes, _ in workers.run(weighted, sizes=[3, 13], dtype="bfloat16"):
        assert error <= 3e-2
        assert sizes == [3, 13]


def without_samples(ddp, hook):
    """Let a worker without samples have gradients that are not numbers."""
    model = DistributedDataParallel(net(), **ddp)
    comm_hook = (None, default_hooks.allreduce_hook) if hook else None
    balancer = Balancer(model, 6, policy=cycle([6, 0]), minimum=0, summary=False,
                        comm_hook=comm_hook)  # fmt: skip
    for samples, _ in balancer.loader(data(18)):
        factor = float("nan") if balancer.batch_size == 0 else 1.0
        (model(samples).mean() * factor).backward()
    balancer.close()
    return bool(gradients(model).isfinite().all())


@pytest.mark.parametrize("hook", [False, True])
@pytest.mark.parametrize("ddp", [{}, {"bucket_cap_mb": 0.0001}], ids=["one bucket", "buckets"])
def test_gradient_of_a_borrowed_sample_is_left_out_be_it_not_a_number(workers, ddp, hook):
    assert workers.run(without_samples, ddp=ddp, hook=hook) == [True, True]


SIZES = [(4, 12), (15, 1), (8, 8), (1, 15), (9, 7)]


def trained(table, epochs=2, hook=None, accumulate=1, scaler=False, num_workers=0):
    """Return the parameters after some epochs with sizes that change in every iteration."""
    policy = cycle(*table) if table else None
    mode = "balanced" if table else "off"
    with balanced(
        16, net(torch.float64), mode=mode, policy=policy, comm_hook=hook
    ) as balancer:  # fmt: skip
        model = model_of(balancer)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        loader = balancer.loader(data(150, torch.float64), num_workers=num_workers)
        sizes = []
        for _ in range(epochs):
            for samples, labels in loader:
                sizes.append(len(samples))
                cross_entropy(model(samples), labels).backward()
                optimizer.step()
                optimizer.zero_grad()
        return parameters(model), sizes


def test_parameters_with_sizes_changing_every_iteration_are_those_of_bsp(workers):
    plain = [result for result, _ in workers.run(trained, table=None)]
    results = workers.run(trained, table=SIZES)
    assert results[0][1][:5] == [4, 15, 8, 1, 9]
    for result, _ in results:
        assert distance(result, plain[0]) <= 1e-10


def test_parameters_are_those_of_a_single_process(workers):
    def alone():
        from evenstep.core.stock_order import stock_order

        model = net(torch.float64)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        samples, labels = data(150, torch.float64)[:]
        for epoch in range(2):
            for chosen in torch.from_numpy(stock_order(150, 0, epoch)).split(16):
                cross_entropy(model(samples[chosen]), labels[chosen]).backward()
                optimizer.step()
                optimizer.zero_grad()
        return parameters(model)

    for result, _ in workers.run(trained, table=SIZES, num_workers=1):
        assert distance(result, alone()) <= 1e-10


def accumulated(table, pieces):
    """Return the gradient of two iterations' batches, and what was reported of them."""
    with balanced(16, policy=cycle(*table), warm_up=0) as balancer:
        model = model_of(balancer)
        noted = note_reports(balancer)
        for i, (samples, labels) in enumerate(balancer.loader(data(16 * pieces), shuffle=False)):
            if i < pieces - 1:
                with model.no_sync():
                    (cross_entropy(model(samples), labels) / pieces).backward()
            else:
                (cross_entropy(model(samples), labels) / pieces).backward()
        balancer.close()
        error = distance(gradients(model), joined_gradient(16 * pieces))
        return error, [reports.batch_sizes.tolist() for reports, _ in noted]


def test_gradients_accumulated_under_no_sync_are_those_of_the_joined_batch(workers):
    for error, sizes in workers.run(accumulated, table=[(3, 13)], pieces=3):
        assert error <= 1e-6
        assert sizes == [[9, 39]]


def test_shares_of_accumulated_batches_add_up_and_so_does_their_importance():
    plain, heavy = Share(frozen([2, 6]), 1), Share(frozen([4, 4]), 1, frozen([30, 10]))
    assert (plain + plain).importance is None
    assert (plain + plain).weight == 12 / 16
    twice = heavy + heavy
    assert (twice.sizes.tolist(), twice.counted.tolist()) == ([8, 8], [60, 20])
    assert (twice.worker, twice.weight) == (1, 1 / 4)
    # A batch that counts for its samples counts for them next to one that does not.
    for both in (plain + heavy, heavy + plain):
        assert (both.sizes.tolist(), both.counted.tolist()) == ([6, 10], [32, 16])


def skipped_while_accumulating():
    """Skip a batch, once before its forward pass and once before its backward pass."""
    with balanced(16, policy=cycle((3, 13)), warm_up=0) as balancer:
        model, noted = model_of(balancer), note_reports(balancer)
        loader = balancer.loader(data(16 * 4), shuffle=False)
        for i, (samples, labels) in enumerate(loader):
            if i == 1:
                continue
            if i == 3:
                cross_entropy(model(samples), labels).backward()
                continue
            with model.no_sync():
                loss = cross_entropy(model(samples), labels)
                if i == 0:
                    loss.backward()
    return [done.sizes.tolist() for _, done in noted]


def test_batches_without_a_backward_pass_do_not_weigh(workers):
    assert workers.run(skipped_while_accumulating) == [[[6, 26]], [[6, 26]]]


def evaluated_before(accumulating, leave):
    """Evaluate with a loader of the same balancer between a batch and its backward pass."""
    with balanced(16, policy=cycle((3, 13)), warm_up=0) as balancer:
        model = model_of(balancer)
        noted = note_reports(balancer)
        validation = balancer.loader(data(7), shuffle=False)
        pieces = 2 if accumulating else 1
        for i, (samples, labels) in enumerate(balancer.loader(data(16 * pieces), shuffle=False)):
            for others, _ in validation:
                with torch.no_grad():
                    model(others)
                if leave:
                    break
            if i < pieces - 1:
                with model.no_sync():
                    (cross_entropy(model(samples), labels) / pieces).backward()
            else:
                (cross_entropy(model(samples), labels) / pieces).backward()
        balancer.close()
        ((reports, done),) = noted
        error = distance(gradients(model), joined_gradient(16 * pieces))
        return error, done.sizes.tolist(), done.position, bool(reports.observed.any())


@pytest.mark.parametrize("accumulating", [False, True])
@pytest.mark.parametrize("leave", [False, True])
def test_evaluation_between_batch_and_backward_pass_changes_no_weight(workers, accumulating, leave):
    for error, sizes, position, observed in workers.run(
        evaluated_before, accumulating=accumulating, leave=leave
    ):
        assert error <= 1e-6
        assert sizes == ([6, 26] if accumulating else [3, 13])
        assert position == (0, 1 if accumulating else 0)
        # Nobody can tell how much of the time was the iteration's own.
        assert not observed


def scaled():
    """Train with autocast and a gradient scaler; return gradients as they are stepped with."""
    with balanced(16, policy=cycle((3, 13))) as balancer:
        model = model_of(balancer)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        error = 0.0
        for samples, labels in balancer.loader(data(16), shuffle=False):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = cross_entropy(model(samples), labels)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            error = distance(gradients(model), joined_gradient(16))
            scaler.step(optimizer)
            scaler.update()
        return error, distance(parameters(model), parameters(net()))


def test_autocast_and_gradient_scaler_work(workers):
    for error, moved in workers.run(scaled):
        assert error <= 3e-2
        assert moved > 1e-3


def means(pieces):
    """Return the means over a whole iteration and over a tail, perhaps accumulating both."""
    with balanced(8, policy=cycle((1, 7), (6, 2)), warm_up=0) as balancer:
        model = model_of(balancer)
        found = []
        for i, (samples, _) in enumerate(balancer.loader(data(11), shuffle=False, pad=False)):
            found.append(balancer.mean(samples.double().mean()))
            if pieces == 2 and i % 2 == 0:
                with model.no_sync():
                    model(samples).sum().backward()
            else:
                model(samples).sum().backward()
        return found


@pytest.mark.parametrize("pieces", [1, 2])
def test_mean_weighs_by_the_samples_of_the_iteration(workers, pieces):
    samples, _ = data(11)[:]
    wanted = [samples[:8].double().mean().item(), samples[8:].double().mean().item()]
    for found in workers.run(means, pieces=pieces):
        assert found == pytest.approx(wanted, rel=1e-6)
