"""State: a checkpoint is taken up again, also by another number of workers."""

from __future__ import annotations

import io

import pytest
import torch
import torch.distributed as dist

from evenstep.training.local_planning import LocalPlanning
from tests.pytorch.setup import Indices, balanced, cycle, exchange, visited
from tests.pytorch.test_balancer import Emulated
from tests.training.test_loop import OLD_REST, OLD_STATE

pytestmark = pytest.mark.distributed

SPEEDS = {"a": 100.0, "b": 300.0, "c": 200.0, "d": 600.0}
TOTAL = 24


def run(
    names, state=None, stop=None, num_samples=24 * 9 + 5, policy="proportional", sampler=None,
    pad=False,
):  # fmt: skip
    """Train from a checkpoint to an iteration; return samples seen, the first sizes, the state."""
    name = names[dist.get_rank()]
    settings = {"timer": Emulated(SPEEDS[name]), "name": name, "policy": policy}
    with balanced(TOTAL, **settings) as balancer:
        loader = balancer.loader(Indices(num_samples), sampler=sampler, pad=pad)
        if state is not None:
            loaded = torch.load(io.BytesIO(state))
            balancer.load_state_dict(loaded["balancer"])
            loader.load_state_dict(loaded["loader"])
        first = balancer.plan.sizes.tolist()
        seen: list[int] = []
        for indices, _ in loader:
            seen += indices.tolist()
            exchange(balancer)
            if balancer.iteration == stop:
                break
        buffer = io.BytesIO()
        torch.save({"balancer": balancer.state_dict(), "loader": loader.state_dict()}, buffer)
        return seen, first, buffer.getvalue()


def samples(results):
    return sorted(index for seen, *_ in results for index in seen)


@pytest.mark.parametrize("policy", ["proportional", "equal_finish"])
@pytest.mark.parametrize(
    ("before", "after"),
    [(("a", "b", "c", "d"), ("d", "a", "c")), (("a", "b", "c"), ("c", "d", "b", "a"))],
)
def test_rest_of_the_epoch_is_visited_by_other_workers(workers, policy, before, after):
    first = workers.run(run, count=len(before), names=before, stop=6, policy=policy)
    assert samples(first) == sorted(set(samples(first)))
    assert len(samples(first)) == 6 * TOTAL
    second = workers.run(run, count=len(after), names=after, state=first[1][2], policy=policy)
    assert sorted(samples(first) + samples(second)) == list(range(24 * 9 + 5))
    # Sizes go on in proportion to what was learned, by name, whatever the ranks.
    sizes = dict(zip(after, second[0][1], strict=True))
    assert sum(sizes.values()) == TOTAL
    assert sizes["c"] == pytest.approx(2 * sizes["a"], abs=1.5)


def test_what_was_learned_makes_sizes_right_at_once(workers):
    state = workers.run(run, count=2, names=("a", "b"))[0][2]
    for _, sizes, _ in workers.run(run, count=2, names=("b", "a"), state=state, stop=1):
        assert sizes == [18, 6]


def predictions(state, names):
    """Return the speeds that the workers predict in their very first report."""
    name = names[dist.get_rank()]
    with balanced(TOTAL, timer=Emulated(SPEEDS[name]), name=name) as balancer:
        balancer.load_state_dict(torch.load(io.BytesIO(state))["balancer"])
        for _ in balancer.loader(Indices(TOTAL)):
            exchange(balancer)
        balancer.state_dict()
        boundary = balancer._loop._boundary
        assert isinstance(boundary, LocalPlanning)
        reports = boundary.totals.last_reports
        assert reports is not None
        return reports.speeds


def test_predictors_remember_the_speed_of_their_worker(workers):
    state = workers.run(run, count=2, names=("a", "b"))[0][2]
    for speeds in workers.run(predictions, count=2, names=("b", "a"), state=state):
        assert speeds == pytest.approx([300, 100], rel=0.05)
    # One that was not there knows nothing, and so nobody plans by speeds yet.
    assert workers.run(predictions, count=2, names=("b", "c"), state=state) == [None, None]


def test_other_seed_or_data_set_is_refused(workers):
    state = workers.run(run, count=2, names=("a", "b"), stop=2)[0][2]
    for failure in workers.failures(mismatch, state=state, seed=1):
        assert failure.message == (
            "the loader's seed must be that of the checkpoint, 0, got 1; the loader's dataset "
            "length must be that of the checkpoint, 221, got 100 in mid-epoch"
        )
    for failure in workers.failures(mismatch, state=state):
        assert "dataset length must be that of the checkpoint, 221, got 100" in failure.message


def mismatch(state, seed=0):
    with balanced(TOTAL) as balancer:
        loader = balancer.loader(Indices(100), seed=seed)
        loader.load_state_dict(torch.load(io.BytesIO(state))["loader"])


def go_on(state):
    """Return the samples of this worker in the rest of an epoch and in the next one."""
    with balanced(6, policy=cycle((4, 2))) as balancer:
        loader = balancer.loader(Indices(21), seed=5)
        loader.load_state_dict(state)
        rest = visited(balancer, loader)
        again = balancer.loader(Indices(21), seed=5)
        again.load_state_dict(loader.state_dict())
        return [*rest, *visited(balancer, again)]


def test_checkpoint_of_an_earlier_version_goes_on_in_its_order(workers):
    for worker, found in enumerate(workers.run(go_on, state=OLD_STATE)):
        assert found == [samples[worker] for samples in OLD_REST]


def names_of(names=None):
    with balanced(8, name=names and names[dist.get_rank()]) as balancer:
        return balancer.state_dict()["workers"]


def test_workers_are_called_by_host_and_device_unless_they_say_otherwise(workers):
    first, second, third = workers.run(names_of, count=3)[0]
    assert first.endswith("/cpu")
    assert (second, third) == (f"{first}#1", f"{first}#2")
    assert workers.run(names_of, names=["x", "y"])[1] == ["x", "y"]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["x", "x"], "name must be another on every worker, got 'x' on workers 0 and 1"),
        (["x", None], "name must be given on all workers or on none, got none on worker 1"),
    ],
)
def test_names_that_tell_nobody_apart_are_refused(workers, names, message):
    for failure in workers.failures(names_of, names=names):
        assert failure.message == message


def test_state_without_what_it_needs_is_refused(workers):
    for failure in workers.failures(load, state={"iteration": 3}):
        assert failure.kind == "StateFileError"
        assert "must have iteration, total, workers and balancer, got iteration" in failure.message


def load(state):
    with balanced(8) as balancer:
        balancer.load_state_dict(state)
