"""The parameter server on Ray against the one in a single process."""

import os
import signal
from dataclasses import replace

import numpy as np
import pytest

from evenstep.simulator.engine.optimizers import make_optimizer
from evenstep.simulator.engine.parameter_server import ParameterServer
from evenstep.simulator.engine.replica import Replica
from evenstep.simulator.engine.sharding import ShardLayout
from evenstep.simulator.ray_engine.calls import get, start_actor
from evenstep.simulator.ray_engine.clock import Clock
from evenstep.simulator.ray_engine.faults import Faults
from evenstep.simulator.ray_engine.server import Pushed, RayServer
from evenstep.simulator.ray_engine.worker_actor import WorkerActor, WorkerTask
from tests.simulator.engine.ray.training import EXACT, MOMENTUM, QUICK, difference

pytestmark = [pytest.mark.timeout(300), pytest.mark.usefixtures("local_ray")]

REPLICA = Replica(EXACT, seed=0)


@pytest.fixture(scope="module")
def worker(local_ray):
    return start_actor(WorkerActor, 0, EXACT, 0, 1, QUICK.patience)


class Servers:
    """Both servers, with the same calls to each."""

    def __init__(self, synchronous, settings=QUICK):
        optimizer = make_optimizer(MOMENTUM)
        tensors = REPLICA.parameters
        self.plain = ParameterServer(tensors, [], optimizer, 4, synchronous)
        layout = ShardLayout.of([p.numel() for p in tensors], 0, num_shards=1)
        self.faults = Faults(Clock())
        self.on_ray = RayServer(layout, tensors, optimizer, 4, synchronous, settings, self.faults)
        self.on_ray.gather()

    def kill(self):
        os.kill(self.on_ray.pids[0], signal.SIGKILL)

    def make_update(self, k, worker, meanwhile="nothing"):
        samples = np.arange(8 * k, 8 * k + 8)
        shards = self.on_ray.handles
        done = get(worker.compute.remote(WorkerTask(k, k, samples, 0.0), shards), 60.0)
        assert (done.version, done.lost) == (k, None)
        assert done.time > 0
        self.plain.push(REPLICA.gradients(self.plain.pull(), samples), 0.75)
        if meanwhile == "killed before it counts":
            self.kill()
        self.on_ray.count(Pushed(0, k, 0.75, worker))
        if meanwhile == "killed before the update":
            self.kill()
        self.on_ray.update()
        self.plain.update()
        return difference(self.on_ray.pull(), self.plain.pull())


def test_dead_shard_continues_from_its_last_state(worker):
    servers = Servers(synchronous=True)
    fates = ["nothing", "killed before it counts", "killed before the update", "nothing"]
    assert max(servers.make_update(k, worker, fate) for k, fate in enumerate(fates)) < 1e-12
    assert [(f.who, f.iteration, f.what.split("; ")[1]) for f in servers.faults.noted] == [
        ("shard 0", 1, "restarted from update 1, 0 updates lost"),
        ("shard 0", 2, "restarted from update 2, 0 updates lost"),
    ]
    servers.on_ray.close()


def test_each_push_of_asp_is_an_update_and_updates_not_kept_are_lost(worker):
    servers = Servers(synchronous=False, settings=replace(QUICK, keep_every=2))
    assert max(servers.make_update(k, worker) for k in range(3)) < 1e-12
    servers.kill()
    servers.on_ray.replace_dead()
    assert servers.faults.noted[0].what.endswith("restarted from update 2, 1 updates lost")
    assert difference(servers.on_ray.pull(), servers.plain.pull()) > 1e-6
    servers.on_ray.close()
