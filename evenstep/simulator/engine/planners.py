"""Planners: provide the batch sizes of each iteration to an engine."""

from __future__ import annotations

from evenstep.core import Ints, Plan, Reports
from evenstep.core.planner import Planner
from evenstep.simulator.clusters.cluster import Cluster
from evenstep.simulator.clusters.conditions import Conditions


class BalancedPlanner:
    """Asks a planner at every boundary; its plans may take effect some iterations later."""

    def __init__(self, planner: Planner) -> None:
        self._planner = planner
        self._in_force = planner.plan
        self._coming: list[Plan] = []

    @property
    def in_force(self) -> Plan:
        """The plan of the last planned iteration."""
        return self._in_force

    @property
    def newest(self) -> Plan:
        """The plan that was made last."""
        return self._planner.plan

    def sizes(self, reports: Reports, ahead: Conditions) -> Ints:
        before = self._planner.plan.number
        plan = self._planner.decide(reports)
        if plan.number != before:
            self._coming.append(plan)
        elif plan.number == self._in_force.number:
            self._in_force = plan
        while self._coming and self._coming[0].iteration <= reports.iteration:
            self._in_force = self._coming.pop(0)
        return self._in_force.sizes


class OraclePlanner:
    """Knows the conditions ahead, noise included: the best possible planner."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def sizes(self, reports: Reports, ahead: Conditions) -> Ints:
        return self._cluster.oracle(ahead)
