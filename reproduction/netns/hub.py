"""The hub of a run: a parameter server, and workers behind links, one of which is degraded.

It is in a network namespace of its own, so that nothing of it is seen outside. Each worker is a
process in another one, behind a link with a token bucket. They speak Thrift (`parameters.thrift`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np

from evenstep.manager.endpoint import Bounds, Connection
from evenstep.simulator.clusters.scenarios import make_scenario
from evenstep.simulator.engine.replica import use_threads
from evenstep.simulator.engine.simulation import Setup
from evenstep.simulator.workloads.registry import make_workload
from reproduction.netns.idl import MAX_FRAME
from reproduction.netns.link import DEGRADED
from reproduction.netns.service import TrainingService
from reproduction.netns.single_process import difference, train_alone
from reproduction.netns.training import WORKLOAD, Training
from reproduction.netns.workers import Member, started_workers

_READ = 256 * 1024
"""Bytes that are read at once."""


def follow(setup: Setup, iterations: int, change_at: int) -> dict[str, Any]:
    """Train with a setup, and return sizes, times, samples and results."""
    use_threads(1)
    cluster = make_scenario("G", noisy=False)
    workload = make_workload(WORKLOAD)
    with started_workers(cluster.workers, workload) as members:
        training = Training(setup, cluster, workload)
        asyncio.run(_serve(training, members, iterations, change_at))
    alone = train_alone(workload, iterations, cluster.total)
    return {
        "workers": list(cluster.workers),
        "sizes": np.array(training.sizes).tolist(),
        "times": np.array(training.times).tolist(),
        "samples": np.concatenate(training.samples).tolist(),
        "accuracy": training.evaluate().accuracy,
        "difference": difference(training.parameters, alone),
    }


async def _serve(
    training: Training, members: Sequence[Member], iterations: int, change_at: int
) -> None:
    """Serve all workers until the training is over; raises the first error."""

    degraded = next(member for member in members if member.name == DEGRADED)

    def before(iteration: int) -> None:
        if iteration == change_at:
            degraded.link.degrade()

    service = TrainingService(training, len(members), iterations, before)
    connections: set[Connection] = set()
    memory = memoryview(bytearray(_READ))
    bounds = Bounds(lambda peer: MAX_FRAME)
    loop = asyncio.get_running_loop()
    for member in members:
        loop.add_reader(member.sentinel, _give_up, service, member)
        listening = await loop.create_server(
            lambda: Connection(service, connections, memory, bounds), member.link.address, 0
        )
        host, port = listening.sockets[0].getsockname()
        member.connect(f"{host}:{port}")
    try:
        await service.over
    finally:
        for member in members:
            loop.remove_reader(member.sentinel)
        for connection in list(connections):
            connection.peer.close()


def _give_up(service: TrainingService, member: Member) -> None:
    service.fail(member.complaint())
