"""The run log: a record of a run, in one format for real and simulated runs."""

from evenstep.runlog.event import EVENTS, Event
from evenstep.runlog.header import SOURCES, VERSION, Header
from evenstep.runlog.iteration_row import QUANTITIES, IterationRow
from evenstep.runlog.parser import Record, RunLogParser
from evenstep.runlog.plan_events import PlanEvents
from evenstep.runlog.reader import RunLogBuilder, read
from evenstep.runlog.run_log import RunLog, Segment
from evenstep.runlog.writer import RunLogWriter

__all__ = [
    "SOURCES",
    "VERSION",
    "EVENTS",
    "QUANTITIES",
    "Header",
    "IterationRow",
    "Event",
    "Record",
    "PlanEvents",
    "RunLogWriter",
    "RunLogParser",
    "RunLogBuilder",
    "RunLog",
    "Segment",
    "read",
]
