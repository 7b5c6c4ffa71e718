"""The loop of one worker in any framework: begin, has_batch, finish, take.

An adapter calls these four in every iteration. The reports of the workers travel with the
gradients: the adapter sums `slots()` over all workers, together with the weighted gradients, and
passes the sum to `take`. Where a device runs ahead of its host, it passes a function that reads the
sum to `arrive` instead; the loop calls it when a later iteration begins.
"""

from __future__ import annotations

import atexit
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evenstep.core import Ints, Plan, Policy
from evenstep.measure.timer import Timer
from evenstep.training.boundary import Boundary
from evenstep.training.checkpoint import Remembered
from evenstep.training.collective import Collective, mean_over_workers, require_agreement
from evenstep.training.epochs import Dealt, Epochs
from evenstep.training.extra_column import ExtraColumn
from evenstep.training.iteration import FinishedIteration, Iteration, Share
from evenstep.training.report_rows import WIDTH, Row, digest
from evenstep.training.reporter import Reporter
from evenstep.training.settings import Settings

Rows = NDArray[np.float32]
"""The rows of all workers."""

Restart = Callable[[int, str], None]
"""Ends this worker, so that the job continues without the straggler of this number and name."""


@contextmanager
def away_from(timer: Timer) -> Iterator[None]:
    """Pause the timer of this worker's own work."""
    timer.pause()
    try:
        yield
    finally:
        timer.resume()


class Loop:
    """Balances one of the workers that exchange gradients collectively.

    `make_loop` makes one from the options of a user. `min_trainable` is the smallest batch that the
    model can be trained on. `lag` is the number of exchanges after which rows are known, where a
    device runs ahead of its host. `column` is an extra column after the rows.
    """

    def __init__(
        self,
        collective: Collective,
        settings: Settings,
        boundary: Boundary,
        timer: Timer,
        reporter: Reporter,
        *,
        min_trainable: int = 1,
        lag: int = 0,
        column: ExtraColumn | None = None,
        restart: Restart | None = None,
        summary: bool = True,
    ) -> None:
        self.collective = collective
        self.worker = collective.worker
        self.num_workers = collective.num_workers
        self.settings = settings
        self.total = settings.total
        """X: samples of all workers in one iteration."""
        self.minimum = settings.minimum
        """The smallest batch size that a plan may give to a worker."""
        self.min_trainable = min_trainable
        self.timer = timer
        self.column = column
        self.cap = settings.limit_of(self.worker, self.num_workers)
        """The largest batch that this worker can run, which is part of its reports."""
        self._boundary = boundary
        self._reporter = reporter
        self._lag = lag
        self._restart = restart
        self.iteration = boundary.first
        """k: the number of finished iterations."""
        self._begun = time.perf_counter()
        self._nothing = Share(np.zeros(self.num_workers, dtype=np.int64), self.worker)
        self.now = self._before_the_first()
        """The running iteration, or the last one."""
        self._row: Row = np.zeros(self.row_width, dtype=np.float32)
        self._finished: FinishedIteration | None = None
        self._arrived: deque[tuple[FinishedIteration, Callable[[], Rows]]] = deque()
        self._prints = summary and self.worker == 0
        atexit.register(self.close)

    @property
    def workers(self) -> tuple[str, ...]:
        """The names of all workers."""
        return self._boundary.workers

    @property
    def plan(self) -> Plan:
        """The plan of the current iteration: batch sizes of all workers."""
        return self.now.plan

    @property
    def policy(self) -> Policy[Any]:
        """The policy behind the plans."""
        return self._boundary.policy

    @property
    def newest_plan(self) -> Plan:
        """The plan of the next iteration, as far as it is known."""
        return self._boundary.plan

    @property
    def batch_size(self) -> int:
        """This worker's planned batch size."""
        return int(self.plan.sizes[self.worker])

    @property
    def samples(self) -> int:
        """x: samples of this worker in the current iteration; 0 if they are borrowed."""
        return self.now.batch.samples

    @property
    def share(self) -> Share:
        """The batches that the gradients of the next exchange are computed on."""
        return self.now.share

    @property
    def weight(self) -> float:
        """``x_i / X``: the weight of this worker's mean gradient in the sum over all workers."""
        return self.share.weight

    @property
    def row_width(self) -> int:
        """Numbers in the row of each worker."""
        extra = 0 if self.column is None else self.column.width
        return WIDTH + self._boundary.slot_width + extra

    def require_min_trainable(self, min_trainable: int) -> None:
        """Raise the smallest batch; raises InvalidSetting where a plan may have a smaller one."""
        self.min_trainable = max(self.min_trainable, min_trainable)
        self.settings.check_retries(self.min_trainable)

    def begin(self) -> Iteration:
        """Begin an iteration: start the timer, learn from arrived reports, and take the plan."""
        # First, as a slow worker also takes longer for the following, which is part of its work.
        self.timer.start()
        start = time.perf_counter() - self._begun
        kept = self._kept()
        self._take_arrived(self._lag)
        self._boundary.meet()
        straggler = self._boundary.straggler
        if self._restart is not None and straggler is not None:
            self._restart(straggler, self._boundary.workers[straggler])
        self.now = Iteration(self.iteration, self._boundary.plan, start, kept, self._nothing)
        return self.now

    def has_batch(
        self,
        sizes: Ints,
        position: tuple[int, ...],
        size: float | None = None,
        importance: Ints | None = None,
    ) -> None:
        """Record the batches of all workers, and their position in the data.

        `size` is the reported size of this worker's batch, if the work is not proportional to its
        samples, as with padding. `importance` is what gradients count for, if not their samples.
        """
        self.now.batch, self.now.position = Share(sizes, self.worker, importance), position
        self.timer.batch(self.samples if size is None or self.samples == 0 else size)

    def resume(self, iteration: Iteration, last: Iteration) -> None:
        """Continue an iteration that the iterations of another loader, up to `last`, interrupted.

        Its own batch processing time is then unknown.
        """
        if self.now is last and not iteration.is_done and iteration.number == self.iteration:
            self.now = iteration
            self.timer.start()
            self.timer.batch(iteration.batch.samples)
            self.timer.spoil()

    def keep(self) -> None:
        """Accumulate the gradients of this iteration for a later exchange."""
        if not self.now.is_done:
            self.timer.keep()
            self.now.is_accumulated = True

    def finish(self, device_memory: float | None = None) -> None:
        """End this worker's own work: its gradients are ready, before any wait for the others."""
        self._finished = self.stop()
        self.report(device_memory)

    def stop(self, iteration: Iteration | None = None) -> FinishedIteration:
        """Stop the timer of the iteration's own work, and return the finished iteration."""
        self.timer.stop()
        ended = iteration or self.now
        ended.is_done = True
        sizes = ended.share.sizes
        done = FinishedIteration(self.iteration, ended.plan, ended.position, sizes, ended.start)
        self.iteration += 1
        return done

    def report(self, device_memory: float | None = None) -> Row:
        """Return this worker's row about the iteration that was stopped."""
        hashed = digest(self.now.plan, self.now.position)
        row = self._reporter.row(self.cap, device_memory, hashed)
        extra = () if self.column is None else (self.column.slot(),)
        self._row = np.concatenate((row, self._boundary.slot(), *extra))
        self.timer.reported()
        return self._row

    def slots(self) -> Rows:
        """Return this worker's row in zeros, one row per worker, to be summed over all workers."""
        rows = np.zeros((self.num_workers, self.row_width), dtype=np.float32)
        rows[self.worker] = self._row
        return rows

    def take(self, rows: Rows) -> None:
        """Take the sum of all workers' slots about the iteration that was finished last."""
        assert self._finished is not None, "take follows finish"
        shaped: Rows = np.asarray(rows, dtype=np.float32)
        self._learn(self._finished, shaped.reshape(self.num_workers, self.row_width))

    def arrive(self, done: FinishedIteration, read: Callable[[], Rows]) -> None:
        """Store how to read the rows about an iteration, for when a later one begins."""
        self._arrived.append((done, read))

    def away(self) -> AbstractContextManager[None]:
        """Return a context that pauses the timer of this worker's own work."""
        return away_from(self.timer)

    def note(self, iteration: int, text: str) -> None:
        """Write a note about the boundary before an iteration into the run log, if there is one."""
        self._boundary.note(iteration, text)

    def agree(self, settings: Mapping[str, Any]) -> None:
        """Raise InvalidSetting, on all workers, unless all of them have the same settings."""
        require_agreement(settings, self.collective)

    def mean(self, value: float, count: float | None = None) -> float:
        """Return the mean over all samples of the iteration, given the mean over this batch.

        With a `count`, it is weighted by the counts of all workers. All workers must call it. The
        wait for the others does not count as work.
        """
        with self.away():
            weight = self.samples if count is None else count
            return mean_over_workers(value, weight, self.collective)

    def state_dict(self) -> dict[str, Any]:
        """Return everything learned, for a checkpoint; the state of one worker fits all."""
        self._take_arrived(self._lag)
        return self._boundary.state(self.iteration)

    def load_state_dict(self, state: Mapping[str, Any]) -> Remembered:
        """Restore a checkpoint, also one of another number of workers.

        Returns what it holds about this worker.
        """
        known = self._boundary.restore(state, self.worker)
        if known.speed is not None:
            self._reporter.remember(known.speed)
        self._finished = None
        self._arrived.clear()
        self.iteration = int(state["iteration"])
        self.now = self._before_the_first()
        return known

    def summary(self) -> str:
        """Return one line on the time that balancing has saved so far."""
        return self._boundary.summary()

    def close(self) -> None:
        """Stop background work and print the summary; this also happens at exit."""
        atexit.unregister(self.close)
        try:
            if self.column is not None:
                self.column.close()
            self._reporter.close()
            self._take_arrived(lag=0)
        finally:
            self._boundary.close(self.iteration)
        if self._prints:
            self._prints = False
            print(self.summary(), file=sys.stderr)

    def _before_the_first(self) -> Iteration:
        """Return the state before the first iteration: a finished one without samples."""
        nothing, plan = self._nothing, self._boundary.plan
        return Iteration(self.iteration, plan, 0.0, nothing, nothing, is_done=True)

    def _kept(self) -> Share:
        """Return the earlier batches whose gradients have not been exchanged."""
        last = self.now
        if last.is_done:
            return self._nothing
        return last.share if last.is_accumulated else last.kept

    def _take_arrived(self, lag: int) -> None:
        """Learn from the rows of all new iterations except the last `lag` of them."""
        while len(self._arrived) > lag:
            done, read = self._arrived.popleft()
            self._learn(done, read())

    def _learn(self, done: FinishedIteration, rows: Rows) -> None:
        self._boundary.take(rows if self.column is None else self.column.cut(rows), done)


def batches(loop: Loop, epochs: Epochs, size_of: Callable[[int], float] = float) -> Iterator[Dealt]:
    """Begin each iteration to the end of the epoch, and yield this worker's part of it.

    `size_of` returns the reported size of a batch of a number of samples.
    """
    while epochs.position < len(epochs):
        plan = loop.begin().plan
        dealt = epochs.deal(plan.sizes, loop.worker, loop.minimum)
        assert dealt is not None, "the epoch has not ended"
        loop.has_batch(dealt.sizes, dealt.position, size_of(len(dealt.samples)))
        epochs.advance()
        yield dealt
    epochs.end()
