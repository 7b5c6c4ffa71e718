"""What a coordinator is: how a worker trades its report for a plan."""

from __future__ import annotations

from typing import Protocol

from evenstep.core.plan import Plan
from evenstep.core.report import Report


class Coordinator(Protocol):
    """Turns the reports of all workers into plans, wherever that is done."""

    def boundary(self, report: Report) -> Plan:
        """Hand in a worker's report and return the plan of the iteration about to start."""
        ...
