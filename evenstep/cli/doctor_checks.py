"""Checks of `evenstep doctor`: installed packages, cores and limits, clock, throttling."""

from __future__ import annotations

import os
import platform
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from evenstep import __version__
from evenstep.cli.main import EXTRAS
from evenstep.errors import EvenstepError
from evenstep.manager.access import is_loopback
from evenstep.measure.cgroups import cpu_quota, memory_limit
from evenstep.simulator.load.throttle import Throttles

_CGROUP = Path("/sys/fs/cgroup")
_COARSE = 1e-4
"""Seconds: a clock with longer ticks is too coarse for short iterations."""


def check_machine() -> Iterator[Finding]:
    """Yield the findings on hardware, limits and permissions."""
    yield _cores()
    yield _limits()
    yield _clock()
    yield _host_name()
    yield _throttling()
    yield _namespaces()


def _cores() -> Finding:
    all_of_them = os.cpu_count() or 1
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else all_of_them
    threads = os.environ.get("OMP_NUM_THREADS")
    text = f"{usable} of {all_of_them} usable, OMP_NUM_THREADS {threads or 'not set'}"
    if usable < 2:
        return Finding(
            "cores", "lacking", text, "several workers on one core time each other's turns: "
            "give them a core each, or measure on more machines",
        )  # fmt: skip
    return Finding("cores", "ok", text)


def _limits() -> Finding:
    version = "v2" if (_CGROUP / "cgroup.controllers").is_file() else "v1"
    if not _CGROUP.is_dir():
        return Finding("control groups", "ok", "none on this system: no limits by them")
    quota, memory = cpu_quota(), memory_limit()
    cpu_text = "no CPU quota" if quota is None else f"quota of {quota:g} CPUs"
    limited = memory is not None and memory.limit < 2**60
    memory_text = f"{memory.limit / 2**30:.1f} GiB" if memory and limited else "no memory limit"
    text = f"cgroup {version}, {cpu_text}, {memory_text}"
    if quota is not None and quota < 1:
        return Finding(
            "control groups", "lacking", text, "less than one CPU is left to all that runs here: "
            "raise the quota (docker --cpus, Kubernetes resources.limits.cpu)",
        )  # fmt: skip
    return Finding("control groups", "ok", text)


def _clock() -> Finding:
    ticks = sorted(_tick() for _ in range(50))
    text = f"perf_counter ticks every {1e9 * ticks[len(ticks) // 2]:.0f} ns"
    if ticks[len(ticks) // 2] > _COARSE:
        remedy = "times of short iterations will be coarse: use larger batches"
        return Finding("clock", "lacking", text, remedy)
    return Finding("clock", "ok", text)


def _tick() -> float:
    start = time.perf_counter()
    now = start
    while now == start:
        now = time.perf_counter()
    return now - start


def _host_name() -> Finding:
    name = socket.gethostname()
    try:
        address = socket.gethostbyname(name)
    except OSError as problem:
        return Finding(
            "host name", "lacking", f"{name} has no address ({problem})",
            "gloo may not find itself: put the name into /etc/hosts, or set GLOO_SOCKET_IFNAME",
        )  # fmt: skip
    if is_loopback(address):
        return Finding(
            "host name", "ok", f"{name} is {address}, which other machines do not reach: to train "
            "on several machines, set GLOO_SOCKET_IFNAME",
        )  # fmt: skip
    return Finding("host name", "ok", f"{name} is {address}")


def _throttling() -> Finding:
    try:
        with Throttles([0.5]):
            pass
    except (EvenstepError, OSError) as problem:
        return Finding(
            "throttling", "lacking", str(problem), "only evenstep demo --throttle and evenstep "
            "load need it: run as root, or in a container with --privileged",
        )  # fmt: skip
    return Finding("throttling", "ok", "CPU quotas can be set by control groups")


def _namespaces() -> Finding:
    """Try to make a network namespace, in a process of its own."""
    remedy = "only slow networks on purpose need them: run as root, with util-linux and iproute2"
    command = shutil.which("unshare")
    if command is None:
        return Finding("network namespaces", "lacking", "unshare is not installed", remedy)
    try:
        done = subprocess.run(
            [command, "--net", "true"], stdin=subprocess.DEVNULL, capture_output=True, timeout=10
        )
    except (OSError, subprocess.TimeoutExpired) as problem:
        return Finding("network namespaces", "lacking", str(problem), remedy)
    if done.returncode:
        message = done.stderr.decode(errors="replace").strip()
        return Finding("network namespaces", "lacking", message or "refused", remedy)
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    if missing:
        text = f"allowed, but {' and '.join(missing)} not installed"
        return Finding("network namespaces", "lacking", text, remedy)
    return Finding("network namespaces", "ok", "allowed, with ip and tc")


MARKS = {"ok": "[ok]", "lacking": "[--]", "broken": "[!!]"}
"""Good; some other feature does not work; balanced training cannot work."""


@dataclass(frozen=True)
class Finding:
    """The result of one check.

    >>> Finding("clock", "ok", "40 ns").as_json()
    {'subject': 'clock', 'state': 'ok', 'text': '40 ns', 'remedy': ''}
    """

    subject: str
    state: str
    """One of `MARKS`."""
    text: str
    remedy: str = ""
    """What to do about a problem."""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


_DISTRIBUTIONS = {"sklearn": "scikit-learn"}
"""Distributions that have another name than their package."""
_LEAST = re.compile(r"^([A-Za-z0-9_.-]+)>=([0-9.]+)")
_NEEDED = ("numpy", "torch", "psutil")
"""Packages that balanced training needs."""


def check_packages() -> Iterator[Finding]:
    """Yield our version, and each package with its version and the extra that brings it."""
    system = f"Python {platform.python_version()} on {platform.system()} {platform.machine()}"
    yield Finding("evenstep", "ok", f"{__version__}, {system}")
    least = _least_versions()
    for package, extra in {"numpy": "", **EXTRAS}.items():
        if package == "tomli" and find_spec("tomllib") is not None:
            continue
        yield _package(package, extra, least)


def _package(package: str, extra: str, least: dict[str, str]) -> Finding:
    distribution = _DISTRIBUTIONS.get(package, package)
    install = f"pip install 'evenstep[{extra}]'" if extra else "pip install numpy"
    brought = f" (extra {extra})" if extra else ""
    bad = "broken" if package in _NEEDED else "lacking"
    if find_spec(package) is None:
        return Finding(package, bad, f"not installed{brought}", install)
    try:
        version = metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return Finding(package, "ok", "installed, version unknown")
    needed = least.get(_normal(distribution))
    if needed is not None and _numbers(version) < _numbers(needed):
        return Finding(package, bad, f"{version}, which is older than {needed}", install)
    return Finding(package, "ok", f"{version}{brought}")


def _least_versions() -> dict[str, str]:
    """Return the least versions of our requirements, from our package's metadata."""
    try:
        needs = metadata.requires("evenstep") or []
    except metadata.PackageNotFoundError:
        return {}
    found = (_LEAST.match(need) for need in needs)
    return {_normal(match[1]): match[2] for match in found if match}


def _normal(distribution: str) -> str:
    return re.sub(r"[-_.]+", "-", distribution).lower()


def _numbers(version: str) -> list[int]:
    """Return the leading numbers of a version.

    >>> _numbers("2.13.0+cpu")
    [2, 13, 0]
    """
    leading = re.match(r"[0-9]+(\.[0-9]+)*", version)
    return [int(part) for part in leading[0].split(".")] if leading else []
