"""Calls that are well-formed Thrift and hostile in what they say."""

import math
import random
from collections.abc import Iterator
from typing import Any

from thriftpy2.thrift import TMessageType

from evenstep.manager import wire
from evenstep.manager.connection import MANAGER
from tests.hostile.job import JOB, TOTAL, WORKERS

COUNTS = (0, 1, 2, 8, 256, 10_000, 10_001, -1, 10**6, 10**12, 10**12 + 1, 2**53, 2**53 + 1, 2**62)
SECONDS = (1e-9, 1e-3, 0.01, 0.0, -1.0, 1e308, math.nan, math.inf, -math.inf)
"""None that is valid is long: every call must be answered soon."""
LEASES = (*SECONDS, 10.0, 86_400.0, 86_401.0)
FRACTIONS = (0.0, 0.5, 1.0, 1.1, -0.1, 1e308, math.nan, math.inf)
NAMES = (
    "",
    "h",
    "..",
    "../../h",
    "h\0h",
    "\n",
    "hö",
    "\u202e",
    "x" * 128,
    "x" * 129,
    "x" * 9_000,
    "-h",
)
JOBS = (*(f"hostile-{i}" for i in range(50)), *NAMES)
POLICIES = (
    None,
    "",
    "even",
    "stepwise",
    "proportional",
    "equal_finish",
    "nonsense",
    "even+limited:maximum=1" + 400 * "0",
    "even+limited:maximum=1e400",
    "even+every_n:n=0",
    "even" + 1_200 * "+observe_only",
    "even" + 20 * "+dead_band",
    "static:shares=" + "/".join(["1"] * 5_000),
    "static:shares=" + "/".join(["nan"] * 8),
    "stepwise:step=" + 4_000 * "9",
    "stepwise:" + 12_000 * "x",
    "a" * 15_000,
)
PREDICTORS = (
    None,
    "",
    "ema",
    "best_of",
    "best_of:narx=true",
    "kalman",
    "nonsense",
    "ema:alpha=nan",
    "lstm",
    "lstm:hidden=5000",
    "narx:hidden=1" + 30 * "0",
    "median:window=9007199254740992",
    "ema:" + "alpha=1," * 1_500,
    "b" * 15_000,
)


def encoded(name: str, **arguments: Any) -> bytes:
    """Return the frame of a call of the manager."""
    service = getattr(MANAGER.types(), MANAGER.service)
    body = wire.encode_body(getattr(service, f"{name}_args")(**arguments))
    return wire.encode_frame(name, TMessageType.CALL, 1, body)


def hello(token: str) -> bytes:
    return encoded("hello", version=MANAGER.oldest, token=token)


def join(job: str, worker: str, lease: float) -> bytes:
    """Return the call of somebody who joins a job that exists."""
    entry = MANAGER.types().Entry(job=job, worker=worker, iteration=0, lease=lease)
    return encoded("join", entry=entry)


def hostile_calls(seed: int) -> Iterator[bytes]:
    """Yield frames without end, each a whole call."""
    rng = random.Random(seed)
    weights = {
        _create: 3, _join: 4, _take: 2, _report: 4, _agree: 2, _status: 2, _plain: 2, _unknown: 1,
    }  # fmt: skip
    while True:
        (kind,) = rng.choices(list(weights), list(weights.values()))
        yield kind(rng)


def _settings(rng: random.Random) -> Any:
    # Most are wrong in one place, so that the later checks are reached too.
    fields = {"workers": 1, "total": 64, "policy": "even", "predictor": "ema"}
    hostile = {
        "workers": COUNTS,
        "total": COUNTS,
        "policy": POLICIES,
        "predictor": PREDICTORS,
        "minimum": COUNTS,
        "granularity": COUNTS,
    }
    for name in rng.sample(sorted(hostile), rng.choice((1, 1, 2, 6))):
        fields[name] = rng.choice(hostile[name])
    return MANAGER.types().Settings(**fields)


def _create(rng: random.Random) -> bytes:
    reuse = rng.choice((None, None, JOB, *JOBS))
    return encoded("create", job=rng.choice(JOBS), settings=_settings(rng), reuse=reuse)


def _join(rng: random.Random) -> bytes:
    entry = MANAGER.types().Entry(
        job=rng.choice(JOBS),
        worker=rng.choice(("w0", *NAMES)),
        iteration=rng.choice(COUNTS),
        lease=rng.choice(LEASES),
        settings=rng.choice((None, _settings(rng))),
        instance=rng.choice((None, "x", "x" * 9_000)),
    )
    return encoded("join", entry=entry)


def _take(rng: random.Random) -> bytes:
    """Try to become a worker of the valid job that is connected, or to change its settings."""
    entry = MANAGER.types().Entry(
        job=JOB,
        worker=rng.choice(WORKERS),
        iteration=rng.choice(COUNTS),
        lease=rng.choice(LEASES),
        instance=rng.choice((None, "x")),
        settings=rng.choice((None, MANAGER.types().Settings(workers=8, total=TOTAL + 1))),
    )
    return encoded("join", entry=entry)


def _report(rng: random.Random) -> bytes:
    report = MANAGER.types().Report(
        iteration=rng.choice(COUNTS),
        batch_size=rng.choice((None, *COUNTS)),
        batch_processing_time=rng.choice((None, *SECONDS)),
        cpu=rng.choice(FRACTIONS),
        memory=rng.choice(FRACTIONS),
        device_memory=rng.choice((None, *FRACTIONS)),
        plan=rng.choice((None, *COUNTS)),
        cap=rng.choice((None, *COUNTS)),
        measured=rng.choice((None, *COUNTS)),
    )
    return encoded("report", report=report, wait=rng.choice(SECONDS))


def _agree(rng: random.Random) -> bytes:
    number = rng.choice(COUNTS)
    return encoded("agree", iteration=rng.choice(COUNTS), number=number, wait=rng.choice(SECONDS))


def _status(rng: random.Random) -> bytes:
    return encoded("status", job=rng.choice((JOB, *JOBS)))


def _plain(rng: random.Random) -> bytes:
    name = rng.choice(("renew", "leave", "hello"))
    if name != "hello":
        return encoded(name)
    token = rng.choice(("", "wrong", "x" * 9_000, "\0" * 16))
    return encoded("hello", version=rng.choice((-1, 0, 1, 2**31 - 1)), token=token)


def _unknown(rng: random.Random) -> bytes:
    name = rng.choice(("", "shutdown", "__init__", "n" * 5_000))
    body = wire.encode_body(MANAGER.types().BatchSizeManager.renew_args())
    return wire.encode_frame(name, TMessageType.CALL, 1, body)
