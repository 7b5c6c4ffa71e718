"""The exceptions of Evenstep.

    EvenstepError                 the root of all exceptions of Evenstep
    ├── InvalidSetting            an argument breaks its rule                (a ValueError)
    ├── InvalidReport             a worker reports impossible values          (a ValueError)
    ├── InfeasibleLimits          no plan can keep the total within limits   (a ValueError)
    ├── MembershipError           an unknown worker, or one that is already a member
    │   └── NameTaken             another worker of this name is connected
    ├── UnknownJob                a manager has no job of this name
    ├── LimitReached              a manager has its maximum of jobs or workers
    ├── OutOfTurn                 a report for an iteration that cannot be due
    ├── Unplanned                 a plan did not come in time
    ├── DivergedPlans             two workers used different plans in one iteration
    ├── ManagerUnreachable        a manager or an agent cannot be reached
    ├── Refused                   a manager or an agent refused a call, with the reason
    ├── MalformedMessage          bytes that are not a valid message         (a ValueError)
    ├── MemoryExhausted           a worker has too little memory for the smallest batch
    ├── CalibrationFailed         a worker could not be timed
    ├── UnknownBatch              gradients that cannot be attributed to a batch of a loader
    ├── PartlyWeighed             only some losses of one exchange were weighed by counts
    ├── WorkerLost                an exchange failed, as a worker died or hangs
    ├── EngineFailed              a run lost workers or shards that it could not restart
    └── FileError                 a file is damaged, foreign or wrong        (a ValueError)
        ├── StateFileError        saved predictors, filters, sessions
        ├── RunLogError           a run log
        ├── DataFileError         samples to train on, with the position of the mistake
        ├── ClusterFileError      a cluster file, with the position of the mistake
        └── PartitionError        a partition on disk, with the file

Every message says what, which, the rule, and the value that it got:
``batch size of worker 3 must be >= 0, got -5``.
"""

from __future__ import annotations


class EvenstepError(Exception):
    """The root of all exceptions that Evenstep raises on purpose."""


class InvalidSetting(EvenstepError, ValueError):
    """An argument or setting breaks its rule."""


class InvalidReport(EvenstepError, ValueError):
    """A report has impossible values; it has changed nothing."""


class InfeasibleLimits(EvenstepError, ValueError):
    """The limits leave no plan whose sizes add up to the total."""


class MembershipError(EvenstepError):
    """A worker is unknown, or is already a member."""


class NameTaken(MembershipError):
    """Another worker of this name is connected."""


class UnknownJob(EvenstepError):
    """A manager has no job of this name."""


class LimitReached(EvenstepError):
    """A manager has its maximum of jobs, workers or connections."""


class OutOfTurn(EvenstepError):
    """A report came for an iteration that cannot be due yet."""


class Unplanned(EvenstepError):
    """A plan did not come in time."""


class DivergedPlans(EvenstepError):
    """Two workers used different plans in one iteration."""


class ManagerUnreachable(EvenstepError):
    """A manager or an agent cannot be reached, or its connection is lost."""


class Refused(EvenstepError):
    """A manager or an agent refused a call; `problem` names the reason."""

    def __init__(self, problem: str, message: str) -> None:
        super().__init__(message)
        self.problem = problem


class MalformedMessage(EvenstepError, ValueError):
    """Received bytes are not a valid message."""


class MemoryExhausted(EvenstepError):
    """A worker has too little memory for the smallest batch that it can run."""


class CalibrationFailed(EvenstepError):
    """A worker could not be timed, so that no plan can be made."""


class UnknownBatch(EvenstepError):
    """A forward or backward pass cannot be attributed to one batch of a loader."""


class PartlyWeighed(EvenstepError):
    """Only some losses of one exchange of gradients were weighed by counts."""


class WorkerLost(EvenstepError):
    """An exchange between the workers failed; the message names those that died or hang."""


class EngineFailed(EvenstepError):
    """A run cannot continue: workers or shards failed and could not be restarted."""


class FileError(EvenstepError, ValueError):
    """A file is damaged, foreign or wrong."""


class StateFileError(FileError):
    """A file of saved state cannot be used."""


class RunLogError(FileError):
    """A run log cannot be read."""


class DataFileError(FileError):
    """A file of samples cannot be read; the message names the position of the mistake."""


class ClusterFileError(FileError):
    """A cluster file has a mistake; the message names its position."""


class PartitionError(FileError):
    """A partition on disk is damaged, foreign or in use; the message names the file."""
