"""A session on Ray: where one is running it is used, else one is started here and ended."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import shutil
import signal
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache

import psutil

from evenstep.errors import EngineFailed, EvenstepError

_LOOPBACK = "127.0.0.1"
_CLUSTERS = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
_OBJECT_STORE = 256 * 1024**2
"""Bytes for what is on its way between actors."""
_GRACE = 10.0
"""Seconds that processes have to end by themselves."""


@contextmanager
def ray_session(address: str | None, num_cpus: int) -> Iterator[None]:
    """Connect to Ray for a while.

    What this process is connected to already is used and left as it is. An existing cluster, by
    its `address`, is left at the end. Otherwise a Ray is started on this machine for so many
    actors; it listens on the loopback interface only, and leaves no process and no file behind.
    """
    try:
        import ray
    except ImportError as error:
        raise EvenstepError("Ray must be installed: pip install 'evenstep[ray]'") from error

    if ray.is_initialized():
        yield
    elif address is None:
        with _local(num_cpus):
            yield
    else:
        with _environment({}):
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
        try:
            yield
        finally:
            ray.shutdown()


@contextmanager
def _local(num_cpus: int) -> Iterator[None]:
    import ray

    folder = tempfile.mkdtemp(prefix="evenstep-ray-")
    before = set(_children())
    handler = signal.getsignal(signal.SIGTERM)
    try:
        with _environment(_token() | {_CLUSTERS: "0"}):
            with _on_loopback():
                ray.init(
                    address="local",
                    num_cpus=num_cpus,
                    include_dashboard=False,
                    object_store_memory=_OBJECT_STORE,
                    log_to_driver=False,
                    logging_level=logging.ERROR,
                    _node_ip_address=_LOOPBACK,
                    _temp_dir=folder,
                )
            if callable(handler):
                # Ray puts a handler of its own there, which ends the process.
                signal.signal(signal.SIGTERM, handler)
            found = ray.util.get_node_ip_address()
            if found != _LOOPBACK:
                raise EngineFailed(f"a local Ray must listen on {_LOOPBACK} only, got {found}")
            yield
    finally:
        started = set(_children()) - before
        with contextlib.suppress(Exception):
            ray.shutdown()
        _end(started)
        shutil.rmtree(folder, ignore_errors=True)
        with contextlib.suppress(ValueError):
            signal.signal(signal.SIGTERM, handler)


@contextmanager
def _on_loopback() -> Iterator[None]:
    """Let Ray take the loopback address for its own; on Linux it replaces it by a public one.

    Its servers listen on that address alone, which is what Ray does on macOS and Windows.
    """
    from ray._private import ray_constants

    before = ray_constants.ENABLE_RAY_CLUSTER
    ray_constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set variables for a while, and let Ray send nothing home; Ray sets some itself."""
    before = dict(os.environ)
    os.environ.update({"RAY_USAGE_STATS_ENABLED": "0", **variables})
    try:
        yield
    finally:
        for name in [name for name in os.environ if name.startswith("RAY_")]:
            del os.environ[name]
        os.environ.update(before)


@cache
def _token() -> dict[str, str]:
    """Return a token of this process's own; Ray would otherwise leave one in the home directory.

    Ray reads it only once, so that all local Rays of a process must have the same.
    """
    if {"RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & set(os.environ):
        return {}
    return {"RAY_AUTH_TOKEN": secrets.token_hex(32)}


def _children() -> list[psutil.Process]:
    return psutil.Process().children(recursive=True)


def _end(processes: set[psutil.Process]) -> None:
    """Wait until processes are gone; those that stay are killed."""
    _, left = psutil.wait_procs(processes, timeout=_GRACE)
    for process in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(left, timeout=_GRACE)
