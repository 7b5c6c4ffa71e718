"""The balancer of a JAX loop: sizes, settings and errors."""

from __future__ import annotations

import json
from itertools import islice

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import evenstep
from evenstep.errors import EvenstepError
from evenstep.jax import Balancer
from evenstep.runlog import read
from tests.jax.setup import arrays_of, balanced, cycle, data, joined_batches, losses, net
from tests.training.timers import SpeedTimer

pytestmark = pytest.mark.distributed

SPEEDS = (100.0, 300.0)


def sizes_of(total, num_iterations=8, batches_of=None, **settings):
    """Return the sizes of all iterations, on emulated devices of unequal speed."""
    timer = SpeedTimer(SPEEDS[jax.process_index()])
    with balanced(total, timer=timer, **settings) as balancer:
        loader = balancer.loader(data(total * num_iterations))
        value_and_grad = balancer.value_and_grad(losses)
        used = []
        for batch in loader:
            used.append(balancer.plan.sizes.tolist())
            assert len(batch[0]) == balancer.batch_size == used[-1][balancer.worker]
            value_and_grad(net(), *batch)
        return balancer.bucket, used


def test_sizes_follow_speeds_in_whole_buckets(workers):
    (bucket, sizes), others = workers.run(sizes_of, total=64, bucket=8)
    assert (bucket, sizes) == others
    assert sizes[0] == [32, 32] and sizes[-1] == [16, 48]


def test_the_total_is_kept_where_it_is_not_of_whole_buckets(workers):
    [(_, sizes), _] = workers.run(sizes_of, total=60, bucket=8)
    assert sizes[0] == [28, 32] and sizes[-1] == [16, 44]
    assert {sum(x) for x in sizes} == {60}


def test_a_bucket_is_an_eighth_of_an_even_share(workers):
    [(bucket, sizes), _] = workers.run(sizes_of, total=130)
    assert bucket == 8
    assert sizes[-1] == [32, 98]


def test_modes(workers):
    [(_, even), _] = workers.run(sizes_of, total=64, bucket=8, mode="off")
    [(_, watched), _] = workers.run(sizes_of, total=64, bucket=8, mode="observe")
    [(_, shared), _] = workers.run(sizes_of, total=64, bucket=8, mode="static", shares=(3, 1))
    assert [even[-1], watched[-1], shared[-1]] == [[32, 32], [32, 32], [48, 16]]


def test_the_run_log_has_every_iteration(workers, tmp_path):
    path = tmp_path / "run.jsonl"
    workers.run(sizes_of, total=64, bucket=8, log=str(path))
    run = read(path)
    assert run.header.job == "jax" and run.ended
    assert run.segments[0].iterations.tolist() == list(range(8))
    assert run.segments[0].batch_sizes[-1].tolist() == [16, 48]


def managed(address, called, blocking):
    name = f"w{9 - jax.process_index()}"
    with evenstep.connect(
        address, called, name, workers=2, total=64, granularity=8, blocking=blocking, timeout=20.0
    ) as client:
        return sizes_of(64, num_iterations=12, coordinator=client)


@pytest.mark.parametrize("blocking", [True, False], ids=["blocking", "non-blocking"])
def test_plans_come_from_a_manager(workers, manager, job, blocking):
    first, second = workers.run(managed, address=manager.address, called=job, blocking=blocking)
    assert first == second
    bucket, sizes = first
    assert bucket == 8 and {sum(x) for x in sizes} == {64}
    assert sizes[-1] == [16, 48]


def resumed(saved):
    """Train five iterations, or five more from a checkpoint; return a checkpoint."""
    with balanced(16, bucket=2, timer=SpeedTimer(SPEEDS[jax.process_index()])) as balancer:
        loader, params = balancer.loader(data(200)), net()
        if saved is not None:
            state = json.loads(saved["json"])
            balancer.load_state_dict(state["balancer"])
            loader.load_state_dict(state["loader"])
            params = jax.tree.unflatten(jax.tree.structure(params), saved["params"])
        value_and_grad = balancer.value_and_grad(losses)
        first = balancer.plan.sizes.tolist()
        for batch in islice(loader, 5):
            _, gradient = value_and_grad(params, *batch)
            params = jax.tree.map(lambda leaf, slope: leaf - 0.1 * slope, params, gradient)
        state = {"balancer": balancer.state_dict(), "loader": loader.state_dict()}
        return {
            "first": first, "iteration": balancer.iteration,
            "json": json.dumps(state), "params": arrays_of(params),
        }  # fmt: skip


def trained_alone(num_iterations):
    params = net()
    gradient_of = jax.jit(jax.grad(lambda params, *batch: losses(params, *batch).mean()))
    for batch in joined_batches(200, 16, num_iterations):
        gradient = gradient_of(params, *batch)
        params = jax.tree.map(lambda leaf, slope: leaf - 0.1 * slope, params, gradient)
    return arrays_of(params)


def test_a_checkpoint_in_mid_epoch_is_taken_up(workers):
    saved, other = workers.run(resumed, saved=None)
    assert saved["first"] == [8, 8]
    assert json.loads(saved["json"]) == json.loads(other["json"])
    later, _ = workers.run(resumed, saved=saved)
    assert later["first"] == [4, 12] and later["iteration"] == 10
    for mine, expected in zip(later["params"], trained_alone(10), strict=True):
        np.testing.assert_allclose(mine, expected, atol=1e-5)


def chosen_by_default():
    with balanced(8, bucket=2) as balancer:
        return type(balancer._loop.policy).__name__


def test_default_policy_is_that_of_the_device(workers):
    assert workers.run(chosen_by_default) == ["Cautious"] * 2


def mistaken(what):
    """Do something that is refused."""
    worker = jax.process_index()
    total = 8 + 2 * worker if what == "total" else 8
    with balanced(total, bucket=2, policy=cycle((4, 4))) as balancer:
        seed = worker if what == "seed" else 0
        batch = next(iter(balancer.loader(data(16), seed=seed)))
        params = jax.tree.map(lambda leaf: leaf + worker, net()) if what == "params" else net()
        loss_fn = {
            "mean": lambda *arguments: losses(*arguments).mean(),
            "figures": lambda *arguments: (losses(*arguments), jnp.ones(3)),
            "no pair": losses,
        }.get(what, losses)
        has_aux = what in ("figures", "no pair")
        value_and_grad = balancer.value_and_grad(loss_fn, has_aux=has_aux)
        if what == "batch":
            batch = batch[0], batch[1][:-1]
        value_and_grad(params, *batch)
        if what == "twice":
            value_and_grad(params, *batch)


MISTAKES = {
    "total": "total must be the same on all workers, got 8 on worker 0 and 10 on worker 1",
    "seed": "seed must be the same on all workers, got 0 on worker 0 and 1 on worker 1",
    "params": "checksum of the parameters must be the same on all workers",
    "mean": "return one loss for each of the 4 samples that it gets, so that padding can be left "
    "out, got shape (): leave out the mean",
    "figures": "return one figure for each of the 4 samples",
    "no pair": "must return a pair with has_aux=True, got",
    "batch": "must have an entry for each of its samples (4), got shape (3,)",
    "twice": "once for each batch of balancer.loader, got a call without a new batch",
}


@pytest.mark.parametrize("what", MISTAKES)
def test_mistakes_are_named_on_all_workers(workers, what):
    for failure in workers.failures(mistaken, what=what):
        assert MISTAKES[what] in failure.message, failure.traceback


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"data": np.ones(3), "num_samples": 3}, "data, or else fetch and num_samples"),
        ({"data": (np.ones(3), np.ones(4))}, r"as many in each, got shapes \(3,\), \(4,\)"),
        ({"data": 5.0}, "an entry per sample"),
    ],
)
def test_a_loader_is_told_where_samples_come_from(settings, message):
    with balanced(2) as balancer, pytest.raises(EvenstepError, match=message):
        balancer.loader(**settings)


def test_one_process_is_a_worker_too():
    balancer = Balancer(8, summary=False)
    value_and_grad = balancer.value_and_grad(losses)
    for batch in balancer.loader(data(20)):
        loss, _ = value_and_grad(net(), *batch)
        assert float(loss) == pytest.approx(float(losses(net(), *batch).mean()), rel=1e-5)
    assert balancer.iteration == 3
    balancer.close()
