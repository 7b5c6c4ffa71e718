"""Injects faults by (worker, iteration)."""

import os


def send(number, who):
    """Return a fault: a signal to the process of a worker or shard."""
    return lambda engine: os.kill(engine.pids[who], number)


class Injected:
    """Injects each fault once, when a worker has started an iteration; records all starts."""

    def __init__(self, faults):
        self._faults = dict(faults)
        self.starts = []

    def __call__(self, engine, worker, iteration):
        self.starts.append((worker, iteration))
        fault = self._faults.pop((worker, iteration), None)
        if fault is not None:
            fault(engine)
