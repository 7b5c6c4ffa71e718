"""Two models in one loop: the gradients of both are those of the joined batch."""

from __future__ import annotations

import time
import warnings
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import GradBucket
from torch.func import functional_call
from torch.nn.functional import cross_entropy, one_hot
from torch.nn.parallel import DistributedDataParallel

from evenstep.pytorch import Balancer
from tests.pytorch.loop import SIZES, TOTAL, Loop
from tests.pytorch.setup import (
    FEATURES,
    balanced,
    cycle,
    data,
    distance,
    model_of,
    net,
    note_reports,
    parameters,
)

pytestmark = pytest.mark.distributed


class Judge(nn.Module):
    """The other half of a pair: tells what the first net made from what it should have made."""

    def __init__(self, batch_norm: bool = False) -> None:
        super().__init__()
        norm = nn.BatchNorm1d(3) if batch_norm else nn.Identity()
        self.layers = nn.Sequential(nn.Linear(3, 4), norm, nn.Tanh(), nn.Linear(4, 1)).double()

    def forward(self, outputs: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.layers(outputs)
        return found


def adversarial(table: Any, weigh: bool = True) -> Any:
    """Train a pair on each batch: the judge twice, then the other, which the judge judges."""
    loop = Loop(table)
    judge = DistributedDataParallel(Judge())
    if weigh:
        loop.balancer.include(judge)
    optimizer = torch.optim.SGD(judge.parameters(), lr=0.1)
    for samples, labels in loop.batches():
        for _ in range(2):
            made, wanted = loop.model(samples).detach(), one_hot(labels, 3).double()
            (judge(made).square() - judge(wanted).sigmoid()).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        made = loop.model(samples)
        fixed = {name: value.detach() for name, value in judge.module.named_parameters()}
        (cross_entropy(made, labels) - functional_call(judge.module, fixed, made).mean()).backward()
        loop.step()
    return torch.cat([parameters(loop.model), parameters(judge)]), loop.sizes


def test_two_models_in_one_loop_end_as_with_plain_bsp(workers):
    plain = workers.run(adversarial, table=None)[0][0]
    for result, sizes in workers.run(adversarial, table=SIZES):
        assert len(set(sizes)) >= 4
        assert distance(result, plain) <= 1e-10


def test_a_further_model_that_is_not_weighed_is_trained_on_something_else(workers):
    plain = workers.run(adversarial, table=None, weigh=False)[0][0]
    result, _ = workers.run(adversarial, table=SIZES, weigh=False)[0]
    assert distance(result, plain) > 1e-4


def with_hook():
    """Return what the hook of a further model was given: gradients weighed by n x_i / X."""
    given = []

    def hook(state: Any, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        given.append(bucket.buffer().clone())
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    with balanced(8, policy=cycle((2, 6))) as balancer:
        further = DistributedDataParallel(nn.Linear(FEATURES, 1, bias=False))
        balancer.include(further, comm_hook=(None, hook))
        for samples, _ in balancer.loader(data(8)):
            further(samples).mean().backward()
            expected = samples.mean(0) * 2 * len(samples) / 8
            return distance(given[0], expected)


def test_a_further_model_may_have_a_communication_hook_too(workers):
    for error in workers.run(with_hook):
        assert error <= 1e-6


WORK = 0.03


class Slow(nn.Module):
    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.inner, self._seconds = net(), seconds

    def forward(self, samples: torch.Tensor) -> torch.Tensor:
        time.sleep(self._seconds)
        outputs: torch.Tensor = self.inner(samples)
        return outputs


def timed():
    """Train a further model, slow on worker 1, and then the first; return its times."""
    with balanced(8, Slow(WORK), policy=cycle((4, 4)), warm_up=0) as balancer:
        model = model_of(balancer)
        seconds = WORK * (10 if balancer.worker == 1 else 1)
        further = DistributedDataParallel(Slow(seconds))
        balancer.include(further)
        noted = note_reports(balancer)
        for samples, _ in balancer.loader(data(8 * 6)):
            further(samples).sum().backward()
            model(samples).sum().backward()
        balancer.close()
        return np.min([reports.times for reports, _ in noted], axis=0).tolist()


def test_work_for_a_further_model_counts_and_waiting_in_its_exchange_does_not(workers):
    for quick, slow in workers.run(timed):
        assert 2 * WORK <= quick < 8 * WORK
        assert slow >= 11 * WORK


def buffers():
    """Return running means of a further model: each worker's own, and as averaged."""
    with balanced(8, policy=cycle((2, 6)), minimum=2) as balancer:
        further = DistributedDataParallel(net(batch_norm=True))
        balancer.include(further)
        own = torch.zeros(1)
        sizes = []
        for samples, _ in balancer.loader(data(8 * 2 + 3), pad=False):
            sizes.append(len(samples))
            further(samples).sum().backward()
            model_of(balancer)(samples).sum().backward()
            own = further.module[1].running_mean.clone()
        return own, further.module[1].running_mean, min(sizes)


def test_running_statistics_of_a_further_model_are_averaged_too(workers):
    (first, averaged, few), (second, same, least) = workers.run(buffers)
    torch.testing.assert_close(averaged, first * 0.25 + second * 0.75)
    assert torch.equal(averaged, same)
    # The tail of three is worker 1's, and worker 0 borrows two, as BatchNorm needs.
    assert (few, least) == (2, 3)


def mistake(which):
    with balanced(8) as balancer:
        further: Any = DistributedDataParallel(net(batch_norm=which == "batch norm"))
        if which == "bare":
            further = net()
        if which == "twice":
            balancer.include(further)
        if which == "group":
            groups = [dist.new_group([rank]) for rank in range(2)]
            group = groups[dist.get_rank()]
            further = DistributedDataParallel(net(), process_group=group)
        hook: Any = print if which == "hook" else None
        balancer.include(further, comm_hook=hook)


MISTAKES = {
    "bare": "the model must be wrapped in DistributedDataParallel, got Sequential",
    "batch norm": "minimum must be at least 2, as a further model has BatchNorm, got 1",
    "twice": "a model can have one Balancer, and this one has one already",
    "group": "a further model must be on the workers of the first, [0, 1], got [",
    "hook": "comm_hook must be (state, hook), got <built-in function print>",
}


@pytest.mark.parametrize("which", MISTAKES)
def test_mistake_with_a_further_model_is_found_before_the_first_iteration(workers, which):
    for failure in workers.failures(mistake, which=which):
        assert failure.kind == "InvalidSetting"
        assert MISTAKES[which] in failure.message


def two_balancers():
    """Train a second model, with a balancer of its own, on batches of the first one's loader."""
    first, second = (DistributedDataParallel(net()) for _ in range(2))
    balancer = Balancer(first, TOTAL, policy=cycle((4, 12)), summary=False, loss="mean")
    other = Balancer(second, TOTAL, policy=cycle((4, 12)), summary=False, loss="mean")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for samples, _ in balancer.loader(data(TOTAL * 3)):
            second(samples).sum().backward()
            first(samples).sum().backward()
    balancer.close()
    other.close()
    return [str(warning.message) for warning in caught]


def test_balancer_whose_loader_is_not_used_says_so_once(workers):
    for [message] in workers.run(two_balancers):
        assert "gradients came from no batch of the balancer's loader" in message
        assert "balancer.include(...)" in message


def side_by_side(table):
    """Train two models, each with a balancer and a loader, in one loop body."""
    loops = [Loop(table), Loop(table and table[::-1])]
    for batches in zip(*(loop.batches() for loop in loops), strict=True):
        for loop, batch in zip(loops, batches, strict=True):
            loop.train(*batch)
    return [loop.result() for loop in loops]


def test_two_balancers_with_a_loader_each_weigh_rightly(workers):
    plain, _ = workers.run(side_by_side, table=None)[0]
    for results in workers.run(side_by_side, table=SIZES):
        assert results[0][1] != results[1][1]
        for result, _ in results:
            assert distance(result, plain[0]) <= 1e-10
