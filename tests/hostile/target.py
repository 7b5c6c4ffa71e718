"""A manager under attack, its valid job, and the figures of both."""

import contextlib
import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import psutil

from evenstep.errors import ManagerUnreachable
from evenstep.manager.access import client_context
from evenstep.manager.client import ManagerClient
from evenstep.manager.connection import ServiceConnection, Where
from tests.hostile.job import JOB, TOTAL, WORKERS, Round, ValidJob
from tests.manager.managers import PATIENCE, Manager, running
from tests.manager.test_access import TOKEN, make_certificate

ROOT = Path(__file__).parents[2]
SLOWDOWN = 3.0
"""How many times their usual p99 the p99 of the rounds may be during an attack, and after it."""
STALLED = 0.1
"""The share of an attack that may pass in rounds that are slower than that."""
GROWTH = 1.2
"""How many times its usual memory the manager may take at most."""
MOST_LOGGED = 16 * 1024
"""Bytes that an attack may add to the log, without the lines about jobs that came of it."""

TIMEOUT = PATIENCE / 2
"""Seconds that a worker waits for its plan before it continues with the last one."""

START = """
import resource
# An attack that succeeds must not take the memory of the whole machine.
resource.setrlimit(resource.RLIMIT_AS, (2**33, 2**33))
if {files}:
    resource.setrlimit(resource.RLIMIT_NOFILE, ({files}, {files}))
from evenstep.cli.main import main
raise SystemExit(main())
"""


@dataclass(frozen=True)
class Span:
    """What was measured in a span of time."""

    seconds: float
    rounds: list[Round] = field(repr=False)
    memory: int
    """The largest resident set of the manager, in bytes."""
    asked: int
    """How often /livez was asked, and a newcomer said hello."""
    dead: int
    """How often /livez did not answer."""
    turned_away: int
    """How often a newcomer got no answer."""

    @property
    def p99(self) -> float:
        return float(np.percentile([one.seconds for one in self.rounds], 99))

    @property
    def longest(self) -> float:
        return max(one.seconds for one in self.rounds)

    @property
    def unserved(self) -> int:
        return sum(not one.served for one in self.rounds)


@dataclass
class Figures:
    """The rounds of the valid job before, during and after an attack."""

    attack: str
    before: Span
    during: Span
    after: Span
    lost: list[str]
    """The workers of the valid job that lost their lease."""
    logged: int
    """Bytes that the manager logged in the meantime, without its lines about jobs."""
    tracebacks: int
    faults: list[str]
    came_of_it: dict[str, int] = field(default_factory=dict)
    """What the attacker counted."""

    HEAD = (
        "attack", "rounds", "p99 before", "p99 during", "ratio", "after", "longest", "stalled",
        "unserved", "memory", "no /livez", "no hello", "logged",
    )  # fmt: skip

    @property
    def ratio(self) -> float:
        return self.during.p99 / self.before.p99

    @property
    def stalled(self) -> float:
        """The share of the attack that passed in rounds slower than `SLOWDOWN` times the p99."""
        slow = SLOWDOWN * self.before.p99
        spent = sum(one.seconds for one in self.during.rounds if one.seconds > slow)
        return spent / self.during.seconds

    @property
    def growth(self) -> float:
        return max(self.during.memory, self.after.memory) / self.before.memory

    def row(self) -> tuple[str, ...]:
        before, during = self.before, self.during
        return (
            self.attack,
            f"{len(during.rounds)}",
            f"{1e3 * before.p99:.1f} ms",
            f"{1e3 * during.p99:.1f} ms",
            f"{self.ratio:.2f}",
            f"{self.after.p99 / before.p99:.2f}",
            f"{1e3 * during.longest:.0f} ms",
            f"{self.stalled:.1%}",
            f"{during.unserved}",
            f"{before.memory / 2**20:.0f} MiB x {self.growth:.2f}",
            f"{during.dead}/{during.asked}",
            f"{during.turned_away}/{during.asked}",
            f"{self.logged / 1024:.0f} KiB",
        )

    def check(self) -> None:
        """Fail with everything that was promised and did not hold."""
        problems = [*self.slowness(), *self.problems()]
        assert not problems, "\n".join([f"{self.attack}:", *problems])

    def slowness(self) -> list[str]:
        """Return what was promised about the time of rounds and did not hold, with its figures."""
        usual = f"the usual {1e3 * self.before.p99:.1f} ms"
        found = []
        if self.ratio > SLOWDOWN:
            found.append(f"p99 of rounds must be <= {SLOWDOWN:g} x {usual}, got {self.ratio:.1f} x")
        if self.stalled > STALLED:
            found.append(
                f"at most {STALLED:.0%} of the time may pass in rounds of more than {SLOWDOWN:g} x "
                f"{usual}, got {self.stalled:.0%}, the longest {self.during.longest:.2f} s"
            )
        if self.after.p99 > SLOWDOWN * self.before.p99:
            ratio = self.after.p99 / self.before.p99
            found.append(f"p99 after it must be <= {SLOWDOWN:g} x {usual}, got {ratio:.1f} x")
        return found

    def problems(self) -> list[str]:
        """Return what else was promised and did not hold, with its figures."""
        found = list(self.faults)
        for when, span in (("during", self.during), ("after", self.after)):
            if span.unserved:
                found.append(
                    f"every round {when} it must get its plan from the manager, "
                    f"got {span.unserved} of {len(span.rounds)} that did not"
                )
            if span.dead:
                found.append(f"/livez must answer {when} it, got {span.dead} failures")
        if self.after.turned_away:
            found.append(
                f"newcomers must be let in after it, got {self.after.turned_away} failures"
            )
        if self.lost:
            found.append(f"no worker may lose its lease, got {', '.join(self.lost)}")
        if self.growth > GROWTH:
            mebibytes = self.before.memory / 2**20
            found.append(
                f"memory must be <= {GROWTH:g} x the usual {mebibytes:.0f} MiB, "
                f"got {self.growth:.2f} x"
            )
        if self.logged > MOST_LOGGED or self.tracebacks:
            found.append(
                f"the log must grow by <= {MOST_LOGGED} bytes without tracebacks, "
                f"got {self.logged} and {self.tracebacks}"
            )
        return found


class Target:
    """A manager, and the valid job that it serves."""

    def __init__(self, manager: Manager, certificate: Path | None) -> None:
        self.manager = manager
        self._certificate = certificate
        self._tls = client_context(certificate) if certificate else None
        self.job = ValidJob(self.connect)

    def connect(self, worker: str) -> ManagerClient:
        return self.manager.connect(
            JOB,
            worker,
            workers=len(WORKERS),
            total=TOTAL,
            token=TOKEN if self._certificate else None,
            ca=self._certificate,
            timeout=TIMEOUT,
        )

    def attack(self, name: str, seconds: float, usual: float, number: int = 0) -> Figures:
        """Measure undisturbed rounds, then those during an attack, then those after it."""
        before = self.watch(usual)
        logged = len(self.manager.log)
        settings = {
            "address": self.manager.address,
            "url": self.manager.url,
            "seconds": seconds,
            "number": number,
            "token": TOKEN if self._certificate else "",
            "ca": str(self._certificate or ""),
        }
        with _attacker(name, settings) as attacker:
            assert attacker.stdout is not None
            during = self.watch(12 * seconds, lambda: attacker.poll() is None)
            said = attacker.stdout.read()
            assert attacker.returncode == 0, f"attack {name} must end by itself, got {said!r}"
        after = self.watch(usual)
        new = self.manager.log[logged:].splitlines()
        secured = " with TLS" if self._certificate else ""
        return Figures(
            f"{name}{secured}",
            before,
            during,
            after,
            _lost(new),
            sum(len(line) for line in new if '"job": ' not in line),
            sum("Traceback" in line for line in new),
            self.job.faults(),
            json.loads(said),
        )

    def watch(self, seconds: float, going: Callable[[], bool] = lambda: True) -> Span:
        """Measure for some seconds, or until something is over."""
        process = psutil.Process(self.manager.process.pid)
        begin = time.monotonic()
        memory, alive, let_in = 0, [], []
        while time.monotonic() < begin + seconds and going():
            alive.append(self.is_alive())
            let_in.append(self.lets_in())
            for _ in range(10):
                memory = max(memory, process.memory_info().rss)
                if going():
                    time.sleep(0.1)
        end = time.monotonic()
        self.job.finish_rounds()
        rounds = self.job.between(begin, end)
        return Span(
            end - begin, rounds, memory, len(alive), alive.count(False), let_in.count(False)
        )

    def is_alive(self) -> bool:
        """Whether /livez answers, as a supervisor would ask."""
        try:
            url = f"{self.manager.url}/livez"
            with urllib.request.urlopen(url, timeout=PATIENCE / 4, context=self._tls) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def lets_in(self) -> bool:
        """Whether a newcomer can say hello."""
        token = TOKEN if self._certificate else None
        try:
            ServiceConnection(Where(self.manager.address, token, self._tls), PATIENCE / 4).close()
        except ManagerUnreachable:
            return False
        return True


def _lost(log: list[str]) -> list[str]:
    lines = [json.loads(line) for line in log if '"event": "lost"' in line]
    return [line["worker"] for line in lines if line.get("job") == JOB]


@contextlib.contextmanager
def _attacker(name: str, settings: dict[str, object]) -> Iterator[subprocess.Popen[str]]:
    """Run an attack, from the moment that it is under way."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.hostile.attacker", name],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        process.stdin.write(json.dumps(settings))
        process.stdin.close()
        assert process.stdout.readline() == "ready\n", f"attack {name} did not begin"
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@contextlib.contextmanager
def target(folder: Path, has_tls: bool, files: int = 0, has_state: bool = True) -> Iterator[Target]:
    """Run a manager, with token and TLS or without both, and its valid job."""
    options: list[object] = ["--log-format", "json"]
    if has_state:
        options += ["--state", folder / "state"]
    certificate = None
    if has_tls:
        (folder / "token").write_text(TOKEN)
        certificate, key = make_certificate(folder)
        options += ["--token-file", folder / "token", "--tls-cert", certificate, "--tls-key", key]
    code = START.format(files=files)
    with running(*options, log=folder / "log", code=code) as manager:
        victim = Target(manager, certificate)
        try:
            yield victim
        finally:
            victim.job.close()
