"""A worker to be slowed down: gradients of a linear model on the rows of a memory-mapped file.

    python -m reproduction.slowed_worker GROUP FILE FEATURES PASSES SECONDS

It joins the control group, computes for SECONDS, and prints its samples per second.
Nothing but numpy is loaded, so that a limit of memory is a matter of the file.
"""

from __future__ import annotations

import sys
import time

import numpy as np

from evenstep.simulator.load.throttle import join

BATCH_SIZE = 128
_OUTPUTS = 64
_WARM_UP = 0.3
"""The part of the time that is not counted."""


def main() -> None:
    group, path, features, passes, seconds = sys.argv[1:]
    join(group)
    print(speed(path, int(features), int(passes), float(seconds)))


def speed(path: str, num_features: int, passes: int, seconds: float) -> float:
    """Return the samples per second of a worker that makes some passes over each batch."""
    rows = np.memmap(path, dtype=np.float32, mode="r").reshape(-1, num_features)
    # Every page once: where memory suffices, all of them are there when counting begins.
    rows.reshape(-1)[:: 4096 // rows.itemsize].sum()
    rng = np.random.default_rng(0)
    weights = np.zeros((num_features, _OUTPUTS), dtype=np.float32)
    begin = time.perf_counter()
    counted_from, count = begin, 0
    while (now := time.perf_counter()) < begin + seconds:
        if now < begin + _WARM_UP * seconds:
            counted_from, count = now, 0
        batch = np.asarray(rows[np.sort(rng.integers(len(rows), size=BATCH_SIZE))])
        for _ in range(passes):
            weights -= 1e-6 * (batch.T @ (batch @ weights - 1))
        count += BATCH_SIZE
    return count / (time.perf_counter() - counted_from)


if __name__ == "__main__":
    main()
