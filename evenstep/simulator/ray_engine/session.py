"""A session on Ray: connects to a running Ray, or starts a local one and ends it."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from types import FrameType, ModuleType
from typing import Any

import psutil

from evenstep.errors import EngineFailed, EvenstepError

_LOOPBACK = "127.0.0.1"
_CLUSTERS = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
_OBJECT_STORE = 256 * 1024**2
"""Bytes for objects in transit between actors."""
_GRACE = 10.0
"""Seconds that processes have to end on their own."""


@contextmanager
def ray_session(address: str | None, num_cpus: int) -> Iterator[None]:
    """Connect to Ray inside the block.

    An existing connection of this process is used and kept. With an `address`, the process connects
    to that cluster and disconnects at the end. Otherwise a Ray with `num_cpus` is started on this
    machine; it listens on the loopback interface only and leaves no process and no file behind.
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
    from ray._private import ray_constants, worker

    folder = tempfile.mkdtemp(prefix="evenstep-")
    handler = signal.getsignal(signal.SIGTERM)
    started: list[psutil.Process] = []
    try:
        with (
            _environment(_token() | {_CLUSTERS: "0"}),
            # On Linux Ray replaces a loopback address by a public one, unless clusters are
            # disabled, as on macOS and Windows; its servers listen on that address only.
            _changed(ray_constants, "ENABLE_RAY_CLUSTER", False),
            # Ray reports each dead actor on standard output, which must hold only results.
            _changed(worker, "print_to_stdstream", lambda *_, **__: None),
        ):
            with _new_children(started):
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
            # Ray's handler would end Ray and this process before the cleanup here.
            _handle_sigterm(handler if callable(handler) else _leave)
            found = ray.util.get_node_ip_address()
            if found != _LOOPBACK:
                raise EngineFailed(f"a local Ray must listen on {_LOOPBACK} only, got {found}")
            yield
    finally:
        processes = _with_descendants(started)
        with contextlib.suppress(Exception):
            ray.shutdown()
        _end(processes)
        shutil.rmtree(folder, ignore_errors=True)
        _handle_sigterm(handler)


@contextmanager
def _changed(module: ModuleType, name: str, value: object) -> Iterator[None]:
    """Change an attribute of a module inside the block, if it exists."""
    if not hasattr(module, name):
        yield
        return
    before = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, before)


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set variables and disable Ray's usage statistics inside the block; then restore all."""
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
    """Return a token for this process; Ray would otherwise write one to the home directory.

    Ray reads it only once, so all local Rays of a process must use the same token.
    """
    if {"RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & set(os.environ):
        return {}
    return {"RAY_AUTH_TOKEN": secrets.token_hex(32)}


def _handle_sigterm(handler: Any) -> None:
    # Only the main thread may set handlers, and only it is interrupted.
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, handler)


def _leave(number: int, frame: FrameType | None) -> None:
    """Exit by an exception, so that cleanup ends the started processes first."""
    sys.exit(128 + number)


@contextmanager
def _new_children(found: list[psutil.Process]) -> Iterator[None]:
    """Collect the child processes started inside the block."""
    before = psutil.Process().children()
    try:
        yield
    finally:
        found += set(psutil.Process().children()) - set(before)


def _with_descendants(processes: Sequence[psutil.Process]) -> list[psutil.Process]:
    found = list(processes)
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            found += process.children(recursive=True)
    return found


def _end(processes: Sequence[psutil.Process]) -> None:
    """Wait until processes have exited; kill those that have not."""
    _, left = psutil.wait_procs(processes, timeout=_GRACE)
    for process in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(left, timeout=_GRACE)
