"""Four workers behind lines of their own, one of which is degraded on the way.

    unshare -n python -m evenstep.reproduce.linked_hub POLICY ITERATIONS CHANGE_AT

Lines and workers are real: each worker is a process in a network namespace, behind a pair of
virtual Ethernet devices with a token bucket (tc tbf). How long workers compute is emulated: they
sleep as long as a GPU of scenario G would take, at a tenth of its seconds. This process is the
parameter server, in a namespace of its own, so that nothing of it is seen outside; it prints sizes
and times.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace

import numpy as np

from evenstep.clusters.cluster import Cluster
from evenstep.clusters.scenarios import make_scenario
from evenstep.core.arrays import Floats, Ints
from evenstep.core.report import Reports
from evenstep.engines.planners import BalancedPlanner
from evenstep.engines.simulation import Setup
from evenstep.errors import EvenstepError
from evenstep.reproduce.linked_worker import HEADER, receive

SCALE = 0.1
"""Real seconds for one of scenario G's."""
NUM_BYTES = 94_000
"""Of the parameters: there and back in 15 ms over a line of 100 Mbit/s."""
RATES = ("100mbit", "25mbit")
"""Of a line, and of one that is degraded: a hundredth of the paper's 10 and 2.5 Gbit/s."""
DEGRADED = 1
"""The M60."""


class Line:
    """One worker and its line."""

    def __init__(self, number: int, process: subprocess.Popen[str]) -> None:
        self._near, self._far, self._pid = f"v{number}", f"w{number}", process.pid
        here, there = (f"10.77.{number}.{side}" for side in (1, 2))
        _run("ip", "link", "add", self._near, "type", "veth", "peer", self._far, "netns", self._pid)
        for device, address, inside in ((self._near, here, ()), (self._far, there, self._inside)):
            _run(*inside, "ip", "address", "add", f"{address}/24", "dev", device)
            _run(*inside, "ip", "link", "set", device, "up")
        self.limit(RATES[0], "add")
        with socket.create_server((here, 0)) as server:
            assert process.stdin is not None
            process.stdin.write(f"{here} {server.getsockname()[1]}\n")
            process.stdin.flush()
            server.settimeout(30)
            self.connection, _ = server.accept()

    @property
    def _inside(self) -> tuple[object, ...]:
        return ("nsenter", "-t", self._pid, "-n")

    def limit(self, rate: str, how: str = "change") -> None:
        """Limit both directions."""
        bucket = ("root", "tbf", "rate", rate, "burst", "16kb", "latency", "400ms")
        _run("tc", "qdisc", how, "dev", self._near, *bucket)
        _run(*self._inside, "tc", "qdisc", how, "dev", self._far, *bucket)

    def iterate(self, computation: float) -> float:
        """Let the worker pull, compute and push, and return how long it took."""
        start = time.perf_counter()
        self.connection.sendall(HEADER.pack(computation) + bytes(NUM_BYTES))
        receive(self.connection, NUM_BYTES)
        return time.perf_counter() - start


def follow(policy: str, iterations: int, change_at: int) -> dict[str, object]:
    """Run a policy, and return the sizes and times of all iterations."""
    cluster = make_scenario("G", noisy=False)
    planner = BalancedPlanner(Setup(policy).balancer(cluster))
    sizes: list[Ints] = []
    times: list[Floats] = []
    with _lines(cluster.num_workers) as lines, ThreadPoolExecutor(len(lines)) as pool:
        for k in range(iterations):
            if k == change_at:
                lines[DEGRADED].limit(RATES[1])
            reports = _reports(cluster, sizes, times)
            sizes.append(planner.sizes(reports, cluster.conditions(k, 0.0)))
            computation = SCALE * cluster.curves.times_at(sizes[-1])
            times.append(np.array(list(pool.map(Line.iterate, lines, computation.tolist()))))
    return {
        "workers": list(cluster.workers),
        "sizes": np.array(sizes).tolist(),
        "times": np.array(times).tolist(),
    }


def _reports(cluster: Cluster, sizes: Sequence[Ints], times: Sequence[Floats]) -> Reports:
    """Return what the workers say of the last iteration, if there was one."""
    silent = Reports.silent(len(sizes), cluster.num_workers)
    if not sizes:
        return silent
    memory = cluster.device_memory(sizes[-1])
    return replace(silent, batch_sizes=sizes[-1], times=times[-1], device_memory=memory)


@contextmanager
def _lines(count: int) -> Iterator[list[Line]]:
    """Start workers in namespaces of their own, and end them."""
    worker = ["unshare", "-n", sys.executable, "-m", "evenstep.reproduce.linked_worker"]
    processes = [
        subprocess.Popen(
            [*worker, str(NUM_BYTES)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(count)
    ]
    lines: list[Line] = []
    try:
        for number, process in enumerate(processes):
            assert process.stdout is not None
            process.stdout.readline()
            lines.append(Line(number, process))
        yield lines
    finally:
        for line in lines:
            line.connection.close()
        for process in processes:
            process.kill()
            process.communicate()


def _run(*command: object) -> None:
    words = [str(word) for word in command]
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        raise EvenstepError(f"{' '.join(words)} must succeed, got {done.stderr.strip()!r}")


if __name__ == "__main__":
    print(json.dumps(follow(sys.argv[1], *map(int, sys.argv[2:]))))
