"""How a training ends: what it held is let go of, while the interpreter is still there."""

from __future__ import annotations

import atexit
import copy
import gc
import pickle
import threading
import time
import weakref
from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

from evenstep.pytorch import Balancer
from evenstep.pytorch.collective import _MOMENT, InflightTensors
from evenstep.pytorch.comm_hook import _Kept
from evenstep.training.loop import Loop
from tests.pytorch.setup import data, net


class Thing:
    pass


def test_waits_until_nothing_handed_is_held_any_more():
    inflight = InflightTensors()
    things = [inflight.watch(Thing()) for _ in range(3)]
    assert not inflight.wait(patience=0.01)
    timer = threading.Timer(0.05, things.clear)
    timer.start()
    assert inflight.wait()
    assert not things
    timer.join()


def test_holds_nothing_of_what_was_handed_itself():
    inflight = InflightTensors()
    for _ in range(1000):
        inflight.watch(Thing())
    assert inflight.wait(patience=0)
    assert len(inflight._watched) == 1


def test_at_exit_threads_that_nobody_watches_get_a_moment(monkeypatch):
    at_exit: list[Any] = []
    slept: list[float] = []
    monkeypatch.setattr(atexit, "register", at_exit.append)
    monkeypatch.setattr(time, "sleep", slept.append)
    InflightTensors().watch(Thing())
    at_exit[0]()
    assert slept == [_MOMENT]


def train_and_watch(counts):
    """Train for an epoch; return the types passed to the group, and whether all were released."""
    model = DistributedDataParallel(net(torch.float64), bucket_cap_mb=0.0005)
    balancer = Balancer(model, 16, summary=False)
    types = []
    inflight = balancer._collective.inflight
    watch = inflight.watch
    inflight.watch = lambda thing: types.append(type(thing).__name__) or watch(thing)  # type: ignore[func-returns-value, method-assign]
    for samples, labels in balancer.loader(data(32, torch.float64)):
        loss = F.cross_entropy(model(samples), labels)
        (balancer.weigh(loss, len(labels)) if counts else loss).backward()
    balancer.mean(1.0)
    balancer.close()
    return set(types), inflight.wait(patience=20)


@pytest.mark.distributed
@pytest.mark.parametrize("counts", [False, True])
def test_process_group_lets_go_of_everything_handed_to_it(workers, counts):
    for types, is_let_go in workers.run(train_and_watch, counts=counts):
        assert types == {"Tensor", "function"}
        assert is_let_go


def build_and_drop():
    """Train a model and drop it with its balancer; return whether it is gone."""
    model = DistributedDataParallel(net(torch.float64))
    extra = DistributedDataParallel(net(torch.float64))
    balancer = Balancer(model, 16, summary=False)
    balancer.include(extra)
    for samples, labels in balancer.loader(data(32, torch.float64)):
        F.cross_entropy(extra(samples), labels).backward()
        F.cross_entropy(model(samples), labels).backward()
    balancer.close()
    # The threads of the process group release what they were given a moment later.
    assert balancer._collective.inflight.wait(patience=20)
    gone = [weakref.ref(model), weakref.ref(extra)]
    del model, extra, balancer
    gc.collect()
    return [ref() is None for ref in gone]


@pytest.mark.distributed
def test_model_and_balancer_leave_memory_once_dropped(workers):
    assert workers.run(build_and_drop) == [[True, True]] * 2


def close_and_pickle():
    """Train a model, and pickle the module inside DDP after the balancer was closed."""
    model = DistributedDataParallel(net(torch.float64))
    balancer = Balancer(model, 16, summary=False)
    for samples, labels in balancer.loader(data(32, torch.float64)):
        F.cross_entropy(model(samples), labels).backward()
    balancer.close()
    before = sum(parameter.sum() for parameter in model.module.parameters())
    pickled = pickle.loads(pickle.dumps(model.module))
    return bool(sum(parameter.sum() for parameter in pickled.parameters()) == before)


@pytest.mark.distributed
def test_module_inside_ddp_can_be_pickled_after_the_balancer_is_closed(workers):
    assert workers.run(close_and_pickle) == [True, True]


def drop_only_the_balancer():
    """Train on after the names of balancer and loader are gone; return whether it continues."""
    model = DistributedDataParallel(net(torch.float64))
    balancer = Balancer(model, 16, summary=False)
    batches = list(balancer.loader(data(16, torch.float64)))
    dropped = weakref.ref(balancer._loop)
    del balancer
    gc.collect()
    for samples, labels in batches:
        F.cross_entropy(model(samples), labels).backward()
    # What runs in its background must not run on in the tests that follow.
    cast(Loop, dropped()).close()
    return model.module[0].weight.grad is not None


@pytest.mark.distributed
def test_a_model_keeps_its_exchange_alive(workers):
    assert workers.run(drop_only_the_balancer) == [True, True]


def test_a_copy_of_a_model_has_no_balancer():
    kept: Any = _Kept(cast(Any, Thing()))
    assert copy.deepcopy(kept) is False
