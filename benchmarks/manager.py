"""What the manager costs: a blocking round, in which all report and all get the plan.

A manager process and one process that plays all workers share the cores of this machine. A round
takes from the first report on until the last worker has read its plan; it is given as per cent of
an iteration of one second. The workers' own part (writing and reading messages) is in it, done by
one core for all of them.

    python -m benchmarks.manager [--rounds 1000] [--workers 32 64 96 1000] [--json]
"""

from __future__ import annotations

import argparse
import selectors
import subprocess
import sys
import time
from collections.abc import Iterator

import numpy as np
import psutil
from thriftpy2.thrift import TMessageType

import evenstep
from benchmarks.report import Row, progress, show
from evenstep.core.report import Report, Usage
from evenstep.manager import wire
from evenstep.manager.idl import types
from evenstep.manager.line import Line, Where
from evenstep.manager.messages import from_report, from_settings
from evenstep.manager.settings import Settings

WORKERS = (32, 64, 96, 1_000)
TO_REACH = 1.0
"""Per cent of an iteration of one second, mean, at 96 workers (at most)."""
_WAIT = 60.0


class Workers:
    """All workers of a job, played by one thread."""

    def __init__(self, address: str, num_workers: int, policy: str, predictor: str) -> None:
        settings = Settings(num_workers, 64 * num_workers, policy, predictor)
        self._rng = np.random.default_rng(0)
        self._speeds = np.exp(self._rng.normal(4, 0.4, num_workers))
        self._lines = [Line(Where(address), _WAIT) for _ in range(num_workers)]
        self._sizes = [0] * num_workers
        self._selector = selectors.DefaultSelector()
        for i, line in enumerate(self._lines):
            entry = types().Entry(
                job=f"bench-{num_workers}",
                worker=f"w{i}",
                iteration=0,
                lease=_WAIT,
                settings=from_settings(settings),
            )
            line.call("join", _WAIT, entry=entry)
            self._selector.register(line._socket, selectors.EVENT_READ, i)

    def round(self, iteration: int) -> float:
        """Let all report and read their plan, and return how many seconds it took."""
        noise = np.exp(0.05 * self._rng.standard_normal(len(self._lines)))
        times = [x / v for x, v in zip(self._sizes, self._speeds * noise, strict=True)]
        start = time.perf_counter()
        for i, line in enumerate(self._lines):
            line._socket.sendall(self._frame(i, iteration, times[i]))
        missing = len(self._lines)
        while missing:
            for key, _ in self._selector.select(_WAIT):
                self._read(key.data)
                missing -= 1
        return time.perf_counter() - start

    def close(self) -> None:
        for line in self._lines:
            line.call("leave", _WAIT)
            line.close()
        self._selector.close()

    def _frame(self, i: int, iteration: int, t: float) -> bytes:
        x = self._sizes[i] or None
        report = Report(f"w{i}", iteration, x, t if x else None, Usage(0.9, 0.5))
        arguments = types().BatchSizeManager.report_args(
            report=from_report(report, None), wait=_WAIT
        )
        return wire.encode_frame("report", TMessageType.CALL, 1, wire.encode_body(arguments))

    def _read(self, i: int) -> None:
        line = self._lines[i]
        reply = wire.parse_header(line.receive(time.monotonic() + _WAIT))
        result = wire.decode_body(types().BatchSizeManager.report_result(), reply.body)
        assert result.refused is None, result.refused
        self._sizes[i] = result.success.sizes[i]


def rounds(manager: psutil.Process, address: str, num_workers: int, num_rounds: int) -> Row:
    workers = Workers(address, num_workers, "proportional", "best_of")
    for k in range(5):
        workers.round(k)
    before = manager.cpu_times()
    spent = 100 * np.array([workers.round(k) for k in range(5, num_rounds + 5)])
    after = manager.cpu_times()
    workers.close()
    cpu = after.user + after.system - before.user - before.system
    mean = float(spent.mean())
    return {
        "workers": num_workers,
        "mean, % of 1 s": mean,
        "5th percentile": float(np.percentile(spent, 5)),
        "95th percentile": float(np.percentile(spent, 95)),
        "manager's CPU, % of 1 s": 100 * cpu / num_rounds,
        "rounds": num_rounds,
        "96 within 1 %": ("yes" if mean <= TO_REACH else "NO") if num_workers == 96 else "",
    }


def own_cost(address: str, num_iterations: int) -> Row:
    """Return what a non-blocking worker's training thread spends in `boundary`."""
    client = evenstep.connect(address, "own", "w", workers=1, total=64, blocking=False)
    spent = []
    for k in range(num_iterations):
        start = time.perf_counter()
        client.boundary(Report("w", k, 64, 0.1) if k else Report("w", 0))
        spent.append(1e6 * (time.perf_counter() - start))
        time.sleep(0.002)
    client.leave()
    return {
        "non-blocking worker": "boundary()",
        "median, us": float(np.median(spent[1:])),
        "95th percentile, us": float(np.percentile(spent[1:], 95)),
        "iterations": num_iterations,
    }


def start_manager() -> tuple[subprocess.Popen[str], str]:
    process = subprocess.Popen(
        [sys.executable, "-m", "evenstep", "manager", "--listen", "127.0.0.1:0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    return process, process.stdout.readline().split("listening on ")[1].strip()


def table(
    manager: psutil.Process, address: str, workers: list[int], num_rounds: int
) -> Iterator[Row]:
    for n in progress(workers, "rounds"):
        yield rounds(manager, address, n, num_rounds if n < 1000 else max(10, num_rounds // 20))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=1_000)
    parser.add_argument("--workers", type=int, nargs="+", default=list(WORKERS))
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    process, address = start_manager()
    try:
        rows = list(table(psutil.Process(process.pid), address, args.workers, args.rounds))
        show("a blocking round through the manager, measured", rows, args.json)
        show("a non-blocking worker, measured", [own_cost(address, 1_000)], args.json)
    finally:
        process.terminate()
        process.communicate()


if __name__ == "__main__":
    main()
