"""Training with plans of a manager: what the jobs of its tests share."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist

import evenstep
from evenstep.core import Plan, Report
from evenstep.core.held_plans import Held
from evenstep.errors import Unplanned
from evenstep.manager.client import ManagerClient
from evenstep.pytorch import Balancer
from tests.pytorch.setup import Indices, balanced, exchange
from tests.pytorch.test_balancer import Emulated

TOTAL = 60
SPEEDS = (100.0, 300.0, 200.0)


def connect(address: str, job: str, **settings: Any) -> ManagerClient:
    """Join a job as the worker that this process is; names are not in the order of ranks."""
    name = f"w{9 - dist.get_rank()}"
    defaults = {"workers": dist.get_world_size(), "total": TOTAL, "timeout": 5.0}
    return evenstep.connect(address, job, name, **{**defaults, **settings})


@contextmanager
def managed(
    address: str, job: str, *, client: dict[str, Any] | None = None, **settings: Any
) -> Iterator[tuple[Balancer, ManagerClient]]:
    """Balance a small net by the plans of a manager, on emulated devices of unequal speed."""
    settings = {"total": TOTAL, **settings}
    with connect(address, job, **(client or {})) as coordinator:
        timer = Emulated(SPEEDS[dist.get_rank()])
        chosen = {"timer": timer, "coordinator": coordinator, **settings}
        with balanced(**chosen) as balancer:
            yield balancer, coordinator


def trained(
    balancer: Balancer,
    num_iterations: int,
    before: Callable[[int], None] = lambda k: None,
    pause: float = 0.0,
) -> list[tuple[int, list[int]]]:
    """Train, and return the number and the sizes of the plan of each iteration."""
    used = []
    for k, _ in enumerate(balancer.loader(Indices(TOTAL * num_iterations))):
        used.append((balancer.plan.number, balancer.plan.sizes.tolist()))
        before(k)
        time.sleep(pause)
        exchange(balancer)
    return used


class Lossy:
    """A coordinator that loses what the manager answers to this worker in some iterations."""

    def __init__(self, client: ManagerClient, lost: Callable[[int], bool]) -> None:
        self._client = client
        self._lost = lost
        self._known: tuple[Any, ...] = client.held
        self._until = -1

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    @property
    def held(self) -> tuple[Any, ...]:
        if not self._lost(self._until):
            self._known = self._client.held
        return self._known

    def boundary(self, report: Report, timeout: float | None = None) -> Plan:
        self._until = report.iteration
        plan = self._client.boundary(report, timeout)
        if self._lost(report.iteration):
            raise Unplanned(f"the plan of iteration {report.iteration} was lost")
        return plan


@dataclass
class Job:
    """Settings of a job that no manager has."""

    workers: int
    total: int = TOTAL
    policy: str = "equal_finish"
    predictor: str = "best_of"
    minimum: int = 1
    granularity: int = 1


class Scripted:
    """A coordinator of no manager: what it holds after each report was written down before."""

    job = "scripted"
    iteration = 0
    agrees = False
    timeout = 1.0

    def __init__(
        self,
        worker: str,
        num_workers: int,
        blocking: bool,
        holdings: list[list[Held]],
        pause: float = 0.0,
    ) -> None:
        self.worker = worker
        self.settings = Job(num_workers)
        self.blocking = blocking
        self._holdings = holdings
        self._pause = pause
        self.held: tuple[Held, ...] = ()

    def boundary(self, report: Report, timeout: float | None = None) -> Plan:
        time.sleep(self._pause)
        self.held = tuple(self._holdings[min(report.iteration, len(self._holdings) - 1)])
        if not self.held:
            raise Unplanned("there is no plan")
        return self.held[0].plan

    def use(self, held: Held | None) -> Plan:
        assert held is not None
        return held.plan
