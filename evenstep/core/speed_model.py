"""The speed model: a predictor, and the usage that each speed is learned with.

A report at the boundary of iteration k carries the usage at the start of k, but a speed of an
earlier iteration: of k-1, or of one before that where a device is measured late. A predictor may
learn the speed of iteration j only with the usage at the start of j. So the usage of the last few
boundaries is kept by iteration, and a speed with unknown usage is not learned from.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from evenstep.core.arrays import Floats, Ints
from evenstep.core.predictor import Predictor
from evenstep.core.rows import remap_rows
from evenstep.core.trainer import Trainer, TrainInBackground

KEPT_USAGE = 4
"""Boundaries whose usage is kept: a speed may come this many iterations late, less one."""


class SpeedModel:
    """Teaches a predictor the speeds of iterations, each with the usage at its own start.

    >>> from evenstep.predictors import make_predictor
    >>> model = SpeedModel(make_predictor("ema", num_workers=1))
    >>> model.begin(7, cpu=np.array([0.5]), memory=np.array([1.0]))
    >>> model.learn(np.array([30.0]), iterations=np.array([6])); model.is_taught
    False
    >>> model.learn(np.array([40.0]), iterations=np.array([7])); model.is_taught
    True
    >>> model.predict(cpu=np.array([0.5]), memory=np.array([1.0]))
    array([40.])
    """

    def __init__(self, predictor: Predictor, trainer: Trainer | None = None) -> None:
        self.predictor = predictor
        self.is_taught = False
        """Whether any speed was learned since construction."""
        self._trainer = trainer or TrainInBackground()
        self._usage = deque([no_usage(predictor.num_workers)], maxlen=KEPT_USAGE)

    @property
    def usage(self) -> Floats:
        """The newest usage, as rows (iteration, cpu, memory), to be saved."""
        return self._usage[-1]

    def begin(self, iteration: int, cpu: Floats, memory: Floats) -> None:
        """Keep the usage at the start of an iteration."""
        now = np.full(len(cpu), float(iteration))
        self._usage.append(np.column_stack((now, cpu, memory)))

    def learn(self, speeds: Floats, iterations: Ints) -> None:
        """Learn the speed of each worker in the iteration given for it; NaN where there is none."""
        paired = np.zeros(len(speeds), dtype=np.bool_)
        cpu, memory = np.ones(len(speeds)), np.ones(len(speeds))
        for began, *usage in (rows.T for rows in self._usage):
            here = np.isfinite(speeds) & (began == iterations)
            cpu, memory = np.where(here, usage[0], cpu), np.where(here, usage[1], memory)
            paired |= here
        self.predictor.observe(np.where(paired, speeds, np.nan), cpu, memory)
        self.is_taught |= bool(paired.any())
        self._trainer.poll(self.predictor)

    def predict(self, cpu: Floats, memory: Floats) -> Floats:
        """Return v for an iteration that starts with this usage; changes nothing."""
        return self.predictor.predict(cpu, memory)

    def remap(self, keep: Ints) -> None:
        """Continue with other members: `keep` holds their old positions, -1 for newcomers."""
        self.predictor.remap(keep)
        fresh = no_usage(len(keep))
        self._usage = deque([remap_rows(rows, fresh, keep) for rows in self._usage], KEPT_USAGE)

    def restore_usage(self, usage: Floats) -> None:
        """Continue with the newest usage as it was saved."""
        self._usage = deque([usage], KEPT_USAGE)

    def close(self) -> None:
        """End a training that may be running in the background."""
        self._trainer.close()


def no_usage(num_workers: int) -> Floats:
    """Return rows (iteration, cpu, memory) of workers that have not reported."""
    return np.tile([-2.0, 1.0, 1.0], (num_workers, 1))
