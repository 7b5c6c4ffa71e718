"""Workers and shards that die or freeze, by (worker, iteration): reported, and then restarted."""

import signal
from dataclasses import replace

import pytest

from evenstep.errors import EngineFailed
from evenstep.simulator.ray_engine.calls import kill
from evenstep.simulator.ray_engine.ray_settings import RaySettings
from tests.simulator.engine.ray.injecting import Injected, send
from tests.simulator.engine.ray.training import (
    CLUSTER,
    MOMENTUM,
    QUICK,
    difference,
    trained,
    virtual,
)

pytestmark = [pytest.mark.timeout(300), pytest.mark.usefixtures("local_ray")]


def test_bsp_loses_nothing_when_workers_and_shards_are_killed():
    watch = Injected(
        {
            (1, 1): send(signal.SIGKILL, "worker 1"),
            (0, 2): lambda engine: kill(engine._workers.handles[0]),
            (0, 3): send(signal.SIGKILL, "shard 0"),
            (1, 4): lambda engine: kill(engine._server.handles[0]),
        }
    )
    run, parameters = trained(optimizer=MOMENTUM, watch=watch)
    assert difference(parameters, virtual(optimizer=MOMENTUM)) < 1e-10
    seen = [(fault.who, fault.iteration) for fault in run.faults]
    expected = [("worker 1", 1), ("worker 0", 2), ("shard 0", 3), ("shard 0", 4)]
    assert [fault for fault in seen if fault in expected] == expected
    assert run.faults[0].what.endswith("restarting, the others wait")
    assert [fault.what.split("; ")[1] for fault in run.faults if fault.who == "shard 0"] == [
        "restarted from update 3, 0 updates lost",
        "restarted from update 4, 0 updates lost",
    ]
    assert run.num_samples == 6 * CLUSTER.total


def test_frozen_worker_counts_as_dead():
    watch = Injected({(0, 1): send(signal.SIGSTOP, "worker 0")})
    settings = replace(QUICK, patience=12.0)
    run, parameters = trained(updates=3, settings=settings, watch=watch)
    assert difference(parameters, virtual(updates=3)) < 1e-10
    assert [(fault.who, fault.iteration) for fault in run.faults] == [("worker 0", 1)]
    assert "said nothing" in run.faults[0].what


def test_run_ends_with_an_error_when_too_much_fails():
    watch = Injected({(1, 1): send(signal.SIGKILL, "worker 1")})
    settings = RaySettings(restarts=0, start_patience=150.0)
    with pytest.raises(EngineFailed, match=r"^worker 1 .*\brestarts than 0\b"):
        trained(settings=settings, watch=watch)
