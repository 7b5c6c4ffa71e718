"""The collective of a process group, and the tensors that its threads still hold.

A thread of gloo releases a tensor or a callback shortly after the exchange has completed, and needs
the interpreter lock for that. If the interpreter is already shutting down, the process ends with
SIGABRT, after a successful training. If the process forks at this moment, as a loader does to start
loading processes, Python before 3.12 leaves an internal lock taken in the child, which then hangs
in fork while the loader waits for it.
"""

from __future__ import annotations

import atexit
import os
import sys
import time
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from functools import cache
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, TCPStore

from evenstep.core import Floats, Ints
from evenstep.training.heartbeat import SharedStore


class ProcessGroupCollective:
    """Exchanges numbers between the workers of a group that supports CPU tensors."""

    def __init__(self, group: dist.ProcessGroup, inflight: InflightTensors) -> None:
        self.group = group
        self.inflight = inflight
        self.worker = dist.get_rank(group)
        self.num_workers = dist.get_world_size(group)
        self.explained: Callable[[], AbstractContextManager[None]] = nullcontext
        """Makes a context in which a failure of an exchange names the missing worker."""

    def everybody(self, row: Floats) -> Floats:
        """Return the rows of all workers: each fills its own in zeros, and they are summed."""
        rows = torch.zeros(self.num_workers, len(row), dtype=torch.float64)
        rows[self.worker] = torch.from_numpy(row)
        with self.explained():
            dist.all_reduce(self.inflight.watch(rows), group=self.group)
        gathered: Floats = rows.numpy()
        return gathered

    def of_first(self, numbers: Ints) -> Ints:
        """Return the numbers of worker 0; all workers must pass the same length."""
        sent = torch.from_numpy(numbers.copy())
        first_rank = dist.get_global_rank(self.group, 0)
        with self.explained():
            dist.broadcast(self.inflight.watch(sent), first_rank, self.group)
        first: Ints = sent.numpy()
        return first


def collective_of(group: dist.ProcessGroup) -> ProcessGroupCollective:
    """Return the collective of a group, through a second group if it has no CPU tensors."""
    return ProcessGroupCollective(_side_group(group), InflightTensors())


def _side_group(group: dist.ProcessGroup) -> dist.ProcessGroup:
    """Return a group that can exchange CPU tensors among the same workers."""
    if "gloo" in str(dist.get_backend(group)):
        return group
    ranks = dist.get_process_group_ranks(group)
    side: dist.ProcessGroup = dist.new_group(ranks, backend="gloo")
    return side


def store_of_group() -> SharedStore | None:
    """Return a connection of its own to the TCP store of the process group, if it has one."""
    store = dist.distributed_c10d._get_default_store()
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    if not isinstance(store, TCPStore):
        return None
    own = TCPStore(
        store.host, store.port, is_master=False, timeout=_STORE_TIMEOUT, wait_for_workers=False
    )
    is_of_agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    return SharedStore(own, f"the {'torchrun agent' if is_of_agent else 'process'} of rank 0")


Thing = TypeVar("Thing")

_STORE_TIMEOUT = timedelta(seconds=5)

_PATIENCE = 5.0
"""Seconds to wait at exit: an exchange that others left unfinished takes much longer."""
_BEFORE_FORK = 0.05
"""Seconds to wait before a fork: objects that the loop itself holds are not released."""
_MOMENT = 0.002
"""Seconds within which a thread that has released its objects releases the interpreter."""

_all: weakref.WeakSet[InflightTensors] = weakref.WeakSet()


class InflightTensors:
    """Tracks objects passed to a process group, by weak references."""

    def __init__(self) -> None:
        self._watched: deque[weakref.ref[Any]] = deque()
        atexit.register(self._wait_at_exit)
        _all.add(self)
        _wait_before_forks()

    def watch(self, thing: Thing) -> Thing:
        """Track a tensor or a callback before it is passed to a process group, and return it."""
        while self._watched and self._watched[0]() is None:
            self._watched.popleft()
        self._watched.append(weakref.ref(thing))
        return thing

    def wait(self, patience: float = _PATIENCE) -> bool:
        """Wait until all objects are released; return whether they are."""
        deadline = time.monotonic() + patience
        while any(watched() is not None for watched in self._watched):
            if time.monotonic() > deadline:
                return False
            time.sleep(0.001)
        return True

    def _wait_at_exit(self) -> None:
        self.wait()
        _let_others_through()


@cache
def _wait_before_forks() -> None:
    """Make every later fork wait until the threads of process groups are done."""
    if sys.version_info < (3, 12):
        os.register_at_fork(before=_before_fork)


def _before_fork() -> None:
    deadline = time.monotonic() + _BEFORE_FORK
    for inflight in list(_all):
        inflight.wait(max(0.0, deadline - time.monotonic()))
    _let_others_through()


def _let_others_through() -> None:
    """Give time to threads that hold objects which are not tracked."""
    time.sleep(_MOMENT)
