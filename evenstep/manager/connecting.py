"""How a worker comes to its client."""

from __future__ import annotations

from pathlib import Path

from evenstep.errors import InvalidSetting
from evenstep.manager.access import client_context
from evenstep.manager.client import ManagerClient
from evenstep.manager.line import Where
from evenstep.manager.place import Place
from evenstep.manager.presence import DEFAULT_LEASE, LONGEST_WAIT, check_seconds
from evenstep.manager.settings import Settings, check_name
from evenstep.policies.default import default_policy
from evenstep.predictors import DEFAULT_PREDICTOR


def connect(
    address: str,
    job: str,
    worker: str,
    *,
    workers: int | None = None,
    total: int | None = None,
    policy: str | None = None,
    predictor: str = DEFAULT_PREDICTOR,
    on_cpus: bool = False,
    minimum: int = 1,
    granularity: int = 1,
    reuse: str | None = None,
    iteration: int = 0,
    blocking: bool = True,
    agree: bool = False,
    lease: float = DEFAULT_LEASE,
    timeout: float = 60.0,
    patience: float = 10.0,
    token: str | None = None,
    ca: str | Path | None = None,
) -> ManagerClient:
    """Join a job of the manager at HOST:PORT as a worker, and return its coordinator.

    With `workers` and `total` the job is created if it is not there; it begins with what the job
    called `reuse` has learned. `on_cpus` says that the workers compute on CPUs and report their
    usage, which the default of `policy` depends on. `iteration` is the one that the worker is about
    to start. `ca` names a file of certificates to believe, and turns TLS on.
    """
    if (workers is None) != (total is None):
        raise InvalidSetting(
            f"workers and total of a job must be given together, got {workers} and {total}"
        )
    if reuse is not None and workers is None:
        raise InvalidSetting(f"reuse must go with workers and total of a job, got only {reuse}")
    if agree and not blocking:
        raise InvalidSetting("agree=True must go with blocking=True: an agreement is waited for")
    settings = None
    if workers is not None and total is not None:
        policy = policy or default_policy("cpu" if on_cpus else None, reads_usage=on_cpus)
        settings = Settings(workers, total, policy, predictor, minimum, granularity)
    place = Place(
        Where(address, token, None if ca is None else client_context(ca)),
        check_name("job", job),
        check_name("worker", worker),
        settings,
        iteration,
        check_seconds("lease", lease),
    )
    wait = check_seconds("timeout", timeout, LONGEST_WAIT)
    client = ManagerClient(place, blocking, agree, wait)
    client.open(patience, None if reuse is None else check_name("job", reuse))
    return client
