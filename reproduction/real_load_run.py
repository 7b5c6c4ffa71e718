"""Two workers on a core each, and `evenstep load` on both: the processes and their output."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any

import numpy as np

from evenstep.errors import EvenstepError
from evenstep.simulator.clusters.cluster_b import usage_trace
from evenstep.simulator.clusters.tables import read_table
from evenstep.simulator.load.load import usable_cores
from reproduction.checkout import environment
from reproduction.experiment import Progress

BSP = "bsp"
NARX = "lb-bsp:proportional,predictor=narx"
BEST_OF = "lb-bsp:proportional,predictor=best_of"
CONTENDERS = {BSP: None, NARX: "narx", BEST_OF: "best_of"}
"""The contenders, by their predictor; None is plain DDP with equal batches."""
NUM_WORKERS = 2
TOTAL = 192
"""X: samples in an iteration."""
KIND = "m4.2xlarge"
"""The kind of instance that Cluster-B has most of: our cores are of one kind, too."""
_MEMORY_CAP = 0.01
"""Of the available memory: only c is to change, and taking memory takes CPU time."""
_LONGER = 60.0
"""Seconds after which a load ends by itself, if no process is left to end it."""
_TICK = 0.05
_GRACE = 10.0
"""Seconds that a process has to exit by itself."""


def changing_machines() -> list[str]:
    """Return the machines of the trace to replay: of one kind, those whose load changes most.

    >>> changing_machines()
    ['m4.2xlarge-10', 'm4.2xlarge-13']
    """
    names = [row["worker"] for row in read_table("cluster_b_workers") if row["instance"] == KIND]
    # All levels last five minutes.
    return sorted(names, key=lambda name: -float(np.std(usage_trace(name).cpu)))[:NUM_WORKERS]


def run_real_load(
    seconds: float, speedup: float, block: int, progress: Progress
) -> dict[str, list[Any]]:
    """Train under load for some seconds, and return all rounds, and the summary of each load.

    Raises EvenstepError, with the reason, where that cannot be done.
    """
    cores = _cores()
    with tempfile.TemporaryDirectory(prefix="evenstep-") as folder, ExitStack() as ending:

        def start(name: str, *arguments: object) -> _Process:
            return ending.enter_context(_Process(arguments, Path(folder, name)))

        progress(0.0, "two workers start")
        module = "reproduction.real_load_worker"
        workers = [
            start(f"worker-{i}", module, i, core, folder, block) for i, core in enumerate(cores)
        ]
        for worker in workers:
            if worker.read() != "ready":
                raise _failure(workers)
        loads = [
            start(
                f"load-{i}", "evenstep", "load", "B:usage", "--worker", machine,
                "--cores", core, "--speedup", speedup, "--duration", seconds + _LONGER,
                "--memory-cap", _MEMORY_CAP, "--json",
            )
            for i, (core, machine) in enumerate(zip(cores, changing_machines(), strict=True))
        ]  # fmt: skip
        for load in loads:
            load.await_load()
        for worker in workers:
            worker.tell(str(seconds))
        rounds = list(_rounds(workers, loads, seconds, progress))
        return {"rounds": rounds, "loads": [load.summary() for load in loads]}


def _cores() -> list[int]:
    """Return a core for each worker; two that are far apart are not halves of one."""
    missing = [name for name in ("torch", "psutil", "sklearn") if find_spec(name) is None]
    if missing:
        raise ModuleNotFoundError(f"No module named {missing[0]!r}", name=missing[0])
    cores = usable_cores()
    if len(cores) < NUM_WORKERS:
        rule = f"two workers take at least {NUM_WORKERS} cores that may be used"
        raise EvenstepError(f"{rule}, got {len(cores)}")
    return [cores[0], cores[-1]]


def _rounds(
    workers: Sequence[_Process], loads: Sequence[_Process], seconds: float, progress: Progress
) -> Iterator[dict[str, Any]]:
    while line := workers[0].read():
        for load in loads:
            load.require_running()
        made = json.loads(line)
        progress(min(1.0, made["at"] / seconds), f"for real, {made['at']:.0f} of {seconds:.0f} s")
        yield made
    for worker in workers:
        if not worker.has_ended_well():
            raise _failure(workers)


def _failure(workers: Sequence[_Process]) -> EvenstepError:
    said = "; ".join(worker.complaint() for worker in workers)
    return EvenstepError(f"two workers cannot train together here: {said}")


class _Process:
    """A module of ours in a process of its own, which ends with the context."""

    def __init__(self, arguments: Sequence[object], complaints: Path) -> None:
        self._complaints = complaints
        with complaints.open("wb") as file:
            self._process = subprocess.Popen(
                [sys.executable, "-m", *map(str, arguments)],
                env=environment(OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo"),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                text=True,
                # Ctrl-C is for this process; and if the kernel shares CPUs between sessions first,
                # each worker must count for itself, as each process of a load does.
                start_new_session=True,
            )

    def __enter__(self) -> _Process:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.terminate()
        self._end()

    def tell(self, line: str) -> None:
        """Write a line to it, unless it has ended."""
        try:
            self._pipes[0].write(f"{line}\n")
            self._pipes[0].flush()
        except BrokenPipeError:
            raise EvenstepError(f"a process ended too early: {self.complaint()}") from None

    def read(self) -> str:
        """Return the next line of its output; empty if it has ended."""
        return self._pipes[1].readline().strip()

    def has_ended_well(self) -> bool:
        """Return whether it exited by itself and without an error, after a moment at most."""
        try:
            return self._process.wait(_GRACE) == 0
        except subprocess.TimeoutExpired:
            return False

    def require_running(self) -> None:
        """Raise EvenstepError where it has ended."""
        if self._process.poll() is not None:
            raise EvenstepError(f"a load ended too early: {self.complaint()}")

    def await_load(self) -> None:
        """Wait until a load has started the processes of which it is made."""
        import psutil

        while not psutil.Process(self._process.pid).children():
            self.require_running()
            time.sleep(_TICK)

    def summary(self) -> Any:
        """End a load, and return its summary."""
        self.require_running()
        self._process.terminate()
        try:
            return json.loads(self._end())
        except ValueError:
            raise EvenstepError(f"a load has no summary: {self.complaint()}") from None

    def complaint(self) -> str:
        """Return the last line of its standard error."""
        lines = self._complaints.read_text(errors="replace").strip().splitlines()
        return (lines or ["no reason given"])[-1].strip()

    def _end(self) -> str:
        """Return the rest of its output, until it ends."""
        try:
            return self._process.communicate(timeout=_GRACE)[0]
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.communicate()[0]

    @property
    def _pipes(self) -> tuple[IO[str], IO[str]]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        return self._process.stdin, self._process.stdout
