"""What is installed: our own version, the core's needs, and what each extra brings."""

from __future__ import annotations

import platform
import re
from collections.abc import Iterator
from importlib import metadata
from importlib.util import find_spec

from evenstep import __version__
from evenstep.cli.doctor_finding import Finding
from evenstep.cli.main import EXTRAS

_DISTRIBUTIONS = {"sklearn": "scikit-learn"}
"""Packages whose distribution has another name."""
_LEAST = re.compile(r"^([A-Za-z0-9_.-]+)>=([0-9.]+)")
_NEEDED = ("numpy", "torch", "psutil")
"""What balanced training cannot do without."""


def look_at_packages() -> Iterator[Finding]:
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
    """Return the least version of what we need, as our own package says it."""
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
