"""Checkpoints of the PyTorch adapter that were damaged: refused as a whole, and nothing changes."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
from torch.utils.data import RandomSampler

from evenstep.core.rows import sealed
from tests.damaged import check_refused, damaged, is_refused, resealed, same
from tests.pytorch.setup import Indices, balanced, cycle, exchange, visited
from tests.pytorch.sharding import sharded
from tests.pytorch.test_sharded import step
from tests.pytorch.test_streams import expected, own
from tests.pytorch_partitions.partitions import make, train_on, training

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(180)]

NUM_SAMPLES, TOTAL = 100, 10


def stored(state: Any) -> Any:
    """Return a state as it comes back from a file."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def trained(balancer: Any, loader: Any, iterations: int) -> list[int]:
    """Train for some iterations, and return the samples."""
    seen: list[int] = []
    for k, (indices, *_) in enumerate(loader):
        seen += indices.tolist()
        exchange(balancer)
        if k + 1 == iterations:
            break
    return seen


def attack(kind: str) -> tuple[list[int], list[int]]:
    """Load damaged checkpoints of a loader; return the samples before and after them."""
    with balanced(TOTAL, policy=cycle((3, 7), (6, 4)), warm_up=0) as balancer:

        def make_one() -> Any:
            if kind == "stream":
                return balancer.loader(own(balancer.worker))
            made = torch.Generator().manual_seed(5)
            data = Indices(NUM_SAMPLES)
            sampler = RandomSampler(data, generator=made) if kind == "sampler" else None
            return balancer.loader(data, sampler=sampler)

        loader, other = make_one(), make_one()
        before = trained(balancer, loader, 4)
        trained(balancer, other, 2)
        state, mine = stored(other.state_dict()), stored(loader.state_dict())
        loader = make_one()
        loader.load_state_dict(mine)
        check_refused(state, loader.load_state_dict, lambda: (loader.state_dict(), len_of(loader)))
        for what, changed in damaged(state, seed=1):
            if is_refused(loader.load_state_dict, resealed(changed)):
                assert same(loader.state_dict(), mine), what
            else:
                if kind != "stream":
                    assert loader.epochs.offset <= NUM_SAMPLES, what
                loader.load_state_dict(mine)
        after = [sample for batch in visited(balancer, loader) for sample in batch]
        return before, after


def len_of(loader: Any) -> int:
    return len(loader) if hasattr(loader, "__len__") else 0


@pytest.mark.parametrize("kind", ["shuffled", "sampler"])
def test_damaged_checkpoint_of_a_loader_is_refused_and_no_sample_is_lost(workers, kind):
    both = workers.run(attack, kind=kind)
    seen = [sample for before, after in both for sample in before + after]
    assert sorted(seen) == list(range(NUM_SAMPLES))


def test_damaged_checkpoint_of_a_stream_is_refused_and_no_sample_is_lost(workers):
    for worker, (before, after) in enumerate(workers.run(attack, kind="stream")):
        assert before + after == expected(worker)


def attack_balancer() -> None:
    """Load damaged checkpoints of a balancer that has learned something else."""
    with balanced(TOTAL, name=None) as balancer, balanced(TOTAL) as other:
        trained(balancer, balancer.loader(Indices(NUM_SAMPLES)), 2)
        trained(other, other.loader(Indices(NUM_SAMPLES)), 7)

        def look() -> Any:
            return balancer.state_dict(), balancer.iteration, balancer.plan.sizes, balancer.total

        check_refused(stored(other.state_dict()), balancer.load_state_dict, look)


def test_damaged_checkpoint_of_a_balancer_is_refused(workers):
    workers.run(attack_balancer)


def attack_sharded() -> None:
    with sharded(TOTAL, shares=[1, 4]) as (other, model):
        for k, _ in enumerate(other.loader(Indices(40))):
            step(other, model)
            if k == 1:
                break
        state = stored(other.state_dict())
    with sharded(TOTAL) as (balancer, _):

        def look() -> Any:
            return balancer.state_dict(), balancer.iteration, balancer.plan.sizes, balancer.total

        check_refused(state, balancer.load_state_dict, look)
        mine = balancer.state_dict()
        for what, changed in damaged(state, seed=1):
            if is_refused(balancer.load_state_dict, resealed(changed)):
                assert same(balancer.state_dict(), mine), what
            else:
                assert int(balancer.plan.sizes.sum()) == balancer.total, what
                balancer.load_state_dict(mine)


def test_damaged_checkpoint_of_a_sharded_balancer_is_refused(workers):
    workers.run(attack_sharded)


def attack_local(folders: list[str]) -> None:
    with training(folders, [(5, 3), (2, 6)]) as (balancer, other):
        for k, batch in enumerate(other):
            train_on(balancer, batch)
            if k == 1:
                break
        state = stored(other.state_dict())
    with training(folders, [(5, 3), (2, 6)]) as (balancer, loader):
        check_refused(state, loader.load_state_dict, lambda: (loader.state_dict(), len(loader)))
        mine = loader.state_dict()
        for what, changed in damaged(state, seed=1):
            if is_refused(loader.load_state_dict, resealed(changed)):
                assert same(loader.state_dict(), mine), what
            else:
                assert len(loader) <= 30 or changed["position"] > 2, what
                loader.load_state_dict(mine)


def test_damaged_checkpoint_of_local_partitions_is_refused(workers, tmp_path):
    workers.run(attack_local, folders=make(tmp_path, 11, 13))


def load_other_order(has_sampler: bool) -> None:
    with balanced(TOTAL) as balancer:
        data = Indices(NUM_SAMPLES)
        samplers = [RandomSampler(data), None]
        first, second = samplers if has_sampler else samplers[::-1]
        loader = balancer.loader(data, sampler=first)
        trained(balancer, loader, 2)
        balancer.loader(data, sampler=second).load_state_dict(loader.state_dict())


@pytest.mark.parametrize("has_sampler", [True, False])
def test_order_of_a_sampler_is_not_mistaken_for_another(workers, has_sampler):
    names = ["with", "without"] if has_sampler else ["without", "with"]
    for failure in workers.failures(load_other_order, has_sampler=has_sampler):
        assert failure.kind == "InvalidSetting"
        assert failure.message.endswith(
            f"{names[0]} a sampler in mid-epoch, got one {names[1]} a sampler"
        )


def load_beyond(**changes: Any) -> None:
    with balanced(TOTAL) as balancer:
        loader = balancer.loader(Indices(NUM_SAMPLES))
        trained(balancer, loader, 4)
        loader.load_state_dict(sealed({**loader.state_dict(), **changes}))


def test_position_beyond_the_epoch_is_refused(workers):
    for failure in workers.failures(load_beyond, position=99):
        assert failure.kind == "StateFileError"
        assert failure.message == "position of a saved loader must be at most 10, got 99"
