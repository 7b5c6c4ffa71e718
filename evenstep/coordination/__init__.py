"""Coordination: who has reported, which plan is due, and how a worker gets it."""

from evenstep.coordination.coordinator import Coordinator, JobCoordinator, JobSettings
from evenstep.coordination.in_process import InProcessCoordinator
from evenstep.coordination.session import Receipt, Session

__all__ = [
    "Coordinator",
    "InProcessCoordinator",
    "JobCoordinator",
    "JobSettings",
    "Receipt",
    "Session",
]
