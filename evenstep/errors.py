"""The exceptions of Evenstep, all in one place.

    EvenstepError                 catch this to catch everything of ours
    ├── InvalidSetting            an argument breaks its rule                (a ValueError)
    ├── InvalidReport             a worker says what cannot be true          (a ValueError)
    ├── InfeasibleLimits          no plan can keep the total within limits   (a ValueError)
    ├── MembershipError           an unknown worker, or one that is already there
    │   └── NameTaken             another worker has this name, and is connected
    ├── UnknownJob                a manager has no job of this name
    ├── LimitReached              a manager has as many jobs or workers as it may
    ├── OutOfTurn                 a report for an iteration that cannot be due
    ├── Unplanned                 a plan was waited for and did not come in time
    ├── DivergedPlans             two workers used different plans in one iteration
    ├── ManagerUnreachable        a manager cannot be spoken to
    ├── Refused                   a manager did not do what it was asked, and says why
    ├── MalformedMessage          bytes that are no message of ours          (a ValueError)
    ├── MemoryExhausted           a worker's memory does not suffice for the smallest batch
    ├── CalibrationFailed         a worker could not be timed
    ├── PartlyWeighed             some losses of one exchange were weighed by counts, others not
    ├── EngineFailed              a run lost workers or shards that it could not restart
    └── FileError                 a file is damaged, foreign or wrong        (a ValueError)
        ├── StateFileError        saved predictors, filters, sessions
        ├── RunLogError           a run log
        ├── DataFileError         samples to train on, with the place of the mistake
        ├── ClusterFileError      a cluster file, with the place of the mistake
        └── PartitionError        a partition on disk: which file, and what

Every message says what, which, the rule, and what it got:
``batch size of worker 3 must be >= 0, got -5``.
"""

from __future__ import annotations


class EvenstepError(Exception):
    """The root of all exceptions that Evenstep raises on purpose."""


class InvalidSetting(EvenstepError, ValueError):
    """An argument or setting breaks its rule."""


class InvalidReport(EvenstepError, ValueError):
    """A report says what cannot be true; the state before it is untouched."""


class InfeasibleLimits(EvenstepError, ValueError):
    """The limits leave no plan whose sizes add up to the total."""


class MembershipError(EvenstepError):
    """A worker is unknown, or is already a member."""


class NameTaken(MembershipError):
    """A worker of this name is connected already."""


class UnknownJob(EvenstepError):
    """A manager has no job of this name."""


class LimitReached(EvenstepError):
    """A manager has as many jobs, workers or connections as it may."""


class OutOfTurn(EvenstepError):
    """A report came for an iteration that cannot be due yet."""


class Unplanned(EvenstepError):
    """A plan was waited for and did not come in time."""


class DivergedPlans(EvenstepError):
    """Two workers used different plans in one iteration."""


class ManagerUnreachable(EvenstepError):
    """A manager cannot be spoken to: nobody listens, or the connection is lost."""


class Refused(EvenstepError):
    """A manager did not do what it was asked; `problem` is the name of the reason."""

    def __init__(self, problem: str, message: str) -> None:
        super().__init__(message)
        self.problem = problem


class MalformedMessage(EvenstepError, ValueError):
    """Bytes came that are no message of ours."""


class MemoryExhausted(EvenstepError):
    """A worker's memory does not suffice for the smallest batch that can be run."""


class CalibrationFailed(EvenstepError):
    """A worker could not be timed, so that none can be planned."""


class PartlyWeighed(EvenstepError):
    """Some losses of one exchange of gradients were weighed by counts, and others were not."""


class EngineFailed(EvenstepError):
    """A run cannot go on: workers or shards failed, and could not be restarted."""


class FileError(EvenstepError, ValueError):
    """A file is damaged, foreign or wrong."""


class StateFileError(FileError):
    """A file of saved state cannot be used."""


class RunLogError(FileError):
    """A run log cannot be read."""


class DataFileError(FileError):
    """A file of samples cannot be read; the message names the place of the mistake."""


class ClusterFileError(FileError):
    """A cluster file has a mistake; the message names its place."""


class PartitionError(FileError):
    """A partition on disk is damaged, foreign or in use; the message names the file."""
