"""Settings that meet: micro-batches, the bench, counts, further models, checkpoints, limits."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

from evenstep.pytorch import Balancer
from evenstep.pytorch.batch_limit import BatchLimit
from tests.damaged import resealed
from tests.pytorch.setup import (
    balanced,
    cycle,
    data,
    distance,
    gradients,
    net,
    note_reports,
)

pytestmark = pytest.mark.distributed


def loss_on(model):
    return lambda samples, labels: F.cross_entropy(model(samples), labels)


def make(**settings):
    ddp = settings.pop("ddp", {})
    model = DistributedDataParallel(net(torch.float64, settings.pop("batch_norm", False)), **ddp)
    return model, Balancer(model, 16, summary=False, **settings)


def refuse(which):
    model, balancer = make(ddp={"static_graph": True} if which == "static graph" else {})
    try:
        if which == "further model":
            balancer.include(DistributedDataParallel(net(torch.float64)))
        for batch in balancer.loader(data(16, torch.float64)):
            balancer.backward(loss_on(model), *batch)
    finally:
        balancer.close()


@pytest.mark.parametrize(
    ("which", "message"),
    [
        ("further model", "balancer.backward goes with one model"),
        ("static graph", "leave that out"),
    ],
)
def test_backward_refuses_what_it_cannot_keep_matched(workers, which, message):
    for failure in workers.failures(refuse, which=which):
        assert message in failure.message


def misuse(which):
    choices: dict[str, dict[str, Any]] = {
        "bench with BatchNorm": {"straggler": "bench", "batch_norm": True},
        "bench by speeds": {"straggler": "bench", "policy": "proportional"},
        "bench, but observe": {"straggler": "bench", "mode": "observe"},
        "bench with a minimum": {"straggler": "bench", "minimum": 2},
        "checkpoint of one": {"checkpoint": print if dist.get_rank() else None},
        "hook of one": {"comm_hook": "none" if dist.get_rank() else None},
    }
    make(**choices[which])


MISUSES = {
    "bench with BatchNorm": "granularity",
    "bench by speeds": "takes policy equal_finish, which tries a benched worker again",
    "bench, but observe": "takes mode 'balanced' and a minimum of 0, got 'observe' and 0",
    "bench with a minimum": "takes mode 'balanced' and a minimum of 0, got 'balanced' and 2",
    "checkpoint of one": "checkpoint must be the same on all workers",
    "hook of one": "comm_hook must be the same on all workers",
}


@pytest.mark.parametrize("which", MISUSES)
def test_settings_that_do_not_meet_are_refused_everywhere(workers, which):
    for failure in workers.failures(misuse, which=which):
        assert failure.kind == "InvalidSetting"
        assert MISUSES[which] in failure.message


def bench_from_the_start(weighs, **ddp):
    """Return gradients of an iteration in which worker 1 has had nothing to do so far."""
    model, balancer = make(policy=cycle((16, 0)), minimum=0, ddp=ddp)
    try:

        def loss_of(samples, labels):
            loss = F.cross_entropy(model(samples), labels)
            return balancer.weigh(loss, 3 * len(samples)) if weighs else loss

        for batch in balancer.loader(data(48, torch.float64), shuffle=False):
            model.zero_grad()
            balancer.backward(loss_of, *batch)
        balancer.state_dict()  # Raises what the last reports say.
        return gradients(model)
    finally:
        balancer.close()


@pytest.mark.parametrize("weighs", [False, True])
@pytest.mark.parametrize("ddp", [{}, {"find_unused_parameters": True}])
def test_worker_benched_from_the_start_takes_part_in_every_exchange(workers, weighs, ddp):
    whole = net(torch.float64)
    loss_on(whole)(*data(48, torch.float64)[32:]).backward()
    for gradient in workers.run(bench_from_the_start, weighs=weighs, **ddp):
        assert distance(gradient, gradients(whole)) <= 1e-10


def caught(weighs):
    """Let a piece of the second batch fail otherwise than for want of memory, on all workers."""
    model, balancer = make(policy=cycle((12, 4)), maximum=4, micro_batches=True)
    try:
        calls, left = [0], torch.zeros(0)

        def loss_of(samples, labels):
            calls[0] += 1
            if calls[0] == fails:
                raise KeyError("broken sample")
            loss = F.cross_entropy(model(samples), labels)
            return balancer.weigh(loss, len(samples)) if weighs else loss

        for k, batch in enumerate(balancer.loader(data(48, torch.float64), shuffle=False)):
            fails = calls[0] + 1 + (dist.get_rank() == 0) if k == 1 else -1
            if k == 2:
                model.zero_grad()
            try:
                balancer.backward(loss_of, *batch)
            except KeyError:
                left = gradients(model)
        return gradients(model), left
    finally:
        balancer.close()


@pytest.mark.parametrize("weighs", [False, True])
def test_other_error_leaves_nothing_of_its_batch(workers, weighs):
    first, last = net(torch.float64), net(torch.float64)
    loss_on(first)(*data(48, torch.float64)[:16]).backward()
    loss_on(last)(*data(48, torch.float64)[32:]).backward()
    for gradient, left in workers.run(caught, weighs=weighs):
        assert distance(left, gradients(first)) <= 1e-10
        assert distance(gradient, gradients(last)) <= 1e-10


def resume(maximum):
    with balanced(16, policy="even") as balancer:
        state = balancer.state_dict()
    state["balancer"]["own.sizes"] = [12, 4]
    state["reports"] = {"speeds": [3.0, 1.0], "caps": [2**53, 6]}
    with balanced(16, policy="even", maximum=maximum) as balancer:
        balancer.load_state_dict(resealed(state))
        again = balancer.state_dict()["reports"]
        first = [len(samples) for samples, _ in balancer.loader(data(16))]
        return first, again, balancer._gradients._limit.size


def test_resumed_plan_keeps_to_the_limits_of_now_and_remembers_those_of_then(workers):
    sizes = [first for (first, *_) in workers.run(resume, maximum=[11, 16])]
    assert sizes == [[10], [6]] or sizes == [[11], [5]]
    _, (_, again, limit) = workers.run(resume, maximum=None)
    assert again["speeds"] == [3.0, 1.0]
    assert again["caps"] == [2**53, 6]
    assert limit == 6


def times_around_running_out():
    model, balancer = make(policy=cycle((8, 8)), warm_up=0)
    noted = note_reports(balancer)
    try:
        calls = [0]

        def loss_of(samples, labels):
            calls[0] += 1
            if calls[0] == 3:
                raise MemoryError
            return F.cross_entropy(model(samples), labels)

        for batch in balancer.loader(data(16 * 4, torch.float64)):
            balancer.backward(loss_of, *batch)
        balancer.state_dict()
        return [reports.observed.tolist() for reports, _ in noted]
    finally:
        balancer.close()


def test_time_of_an_iteration_that_ran_out_of_memory_teaches_nothing(workers):
    observed = workers.run(times_around_running_out)[0]
    assert observed[1] == [True, True]
    assert observed[2] == [False, False]
    assert observed[3] == [True, True]


def lists():
    """Run batches of one tensor per sample, in pieces, as for detection."""
    model, balancer = make(policy=cycle((8, 8)), maximum=3, micro_batches=True)
    try:

        def together(samples):
            images, labels = zip(*samples, strict=True)
            return list(images), torch.stack(labels)

        def loss_of(images, labels):
            assert len(images) == len(labels)
            return F.cross_entropy(model(torch.stack(images)), labels)

        for batch in balancer.loader(data(16, torch.float64), shuffle=False, collate_fn=together):
            balancer.backward(loss_of, *batch)
        return gradients(model)
    finally:
        balancer.close()


def test_batches_that_are_lists_are_cut_by_sample(workers):
    whole = net(torch.float64)
    loss_on(whole)(*data(16, torch.float64)[:]).backward()
    for gradient in workers.run(lists):
        assert distance(gradient, gradients(whole)) <= 1e-10


class Flat:
    def read(self):
        return 0.8


def test_readings_that_do_not_rise_promise_nothing():
    limit = BatchLimit(None, 1, Flat())
    for size in (64, 32):
        for _ in range(8):
            limit.has_run(size)
    assert limit.size > 64
