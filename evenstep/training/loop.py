"""The loop of one worker, whatever its framework: begin, has_batch, finish, take.

An adapter calls these four in every iteration. What the workers tell each other is a row per
worker, which an adapter lets ride along with its gradients: it sums `slots()` over all workers,
together with the weighted gradients, and hands the sum back to `take`. Where a device runs ahead of
its host, the sum is handed to `arrive` instead, and read when a later iteration begins.
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
"""The rows of all workers, one below the other."""

Restart = Callable[[int, str], None]
"""Ends this worker, so that the job continues without a straggler of this number and name."""


@contextmanager
def away_from(timer: Timer) -> Iterator[None]:
    """Let the clock of this worker's own work stand still."""
    timer.pause()
    try:
        yield
    finally:
        timer.resume()


class Loop:
    """Balances the loops of workers that meet in a collective exchange of gradients.

    `make_loop` makes one from what a user sets. `min_trainable` is the smallest batch that the
    model can
    be trained on; `lag` is how many exchanges later their rows are known, where a device runs
    ahead of its host; `column` travels behind the rows.
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
        """The largest batch that this worker can run, which travels with its reports."""
        self._boundary = boundary
        self._reporter = reporter
        self._lag = lag
        self._restart = restart
        self.iteration = boundary.first
        """k: iterations that have been finished."""
        self._begun = time.perf_counter()
        self._nothing = Share(np.zeros(self.num_workers, dtype=np.int64), self.worker)
        self.now = self._before_the_first()
        """The iteration under way, or the last one."""
        self._row: Row = np.zeros(self.row_width, dtype=np.float32)
        self._finished: FinishedIteration | None = None
        self._arrived: deque[tuple[FinishedIteration, Callable[[], Rows]]] = deque()
        self._prints = summary and self.worker == 0
        atexit.register(self.close)

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
        """x: samples of this worker in the current iteration; 0 where they are borrowed."""
        return self.now.batch.samples

    @property
    def share(self) -> Share:
        """What the gradients of the coming exchange are computed on."""
        return self.now.share

    @property
    def weight(self) -> float:
        """``x_i / X``: what a mean gradient of this worker weighs in the sum over all workers."""
        return self.share.weight

    @property
    def row_width(self) -> int:
        """Numbers in the row of each worker."""
        extra = 0 if self.column is None else self.column.width
        return WIDTH + self._boundary.slot_width + extra

    def require_min_trainable(self, min_trainable: int) -> None:
        """Let no batch be smaller than this; raises InvalidSetting where a plan would have one."""
        self.min_trainable = max(self.min_trainable, min_trainable)
        self.settings.check_retries(self.min_trainable)

    def begin(self) -> Iteration:
        """Begin an iteration: start the clock, learn from what has arrived, and plan."""
        # Before anything else: what a slow worker needs for this is part of what it takes.
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
        """Take note of the batches of all workers, and of where in the data they are.

        `size` is what this worker's batch is reported as, where it is other work than its samples
        are, as when it is padded; `importance` is what gradients count for, if not for their
        samples.
        """
        self.now.batch, self.now.position = Share(sizes, self.worker, importance), position
        self.timer.batch(self.samples if size is None or self.samples == 0 else size)

    def resume(self, iteration: Iteration, last: Iteration) -> None:
        """Continue an iteration that the iterations of another loader, up to `last`, interrupted.

        How much of the time was its own is not known any more.
        """
        if self.now is last and not iteration.is_done and iteration.number == self.iteration:
            self.now = iteration
            self.timer.start()
            self.timer.batch(iteration.batch.samples)
            self.timer.spoil()

    def keep(self) -> None:
        """Keep the gradients of this iteration for a later exchange: they accumulate."""
        if not self.now.is_done:
            self.timer.keep()
            self.now.is_accumulated = True

    def finish(self, device_memory: float | None = None) -> None:
        """End this worker's own work: its gradients are ready, and nobody was waited for."""
        self._finished = self.stop()
        self.report(device_memory)

    def stop(self, iteration: Iteration | None = None) -> FinishedIteration:
        """Stop the clock of the iteration's own work, and return what is exchanged of it."""
        self.timer.stop()
        ended = iteration or self.now
        ended.is_done = True
        sizes = ended.share.sizes
        done = FinishedIteration(self.iteration, ended.plan, ended.position, sizes, ended.start)
        self.iteration += 1
        return done

    def report(self, device_memory: float | None = None) -> Row:
        """Return this worker's row about the iteration whose clock was stopped."""
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
        """Keep the rows about an iteration, to be read when a later one begins."""
        self._arrived.append((done, read))

    def away(self) -> AbstractContextManager[None]:
        """Return a context for what is not this worker's own work."""
        return away_from(self.timer)

    def note(self, iteration: int, text: str) -> None:
        """Write into the run log, where there is one, what happened before an iteration."""
        self._boundary.note(iteration, text)

    def agree(self, settings: Mapping[str, Any]) -> None:
        """Raise InvalidSetting, on all workers, unless all of them have the same settings."""
        require_agreement(settings, self.collective)

    def mean(self, value: float, count: float | None = None) -> float:
        """Return the mean over all samples of the iteration of what is a mean over this batch.

        With a `count`, it is the mean over all that is counted. All workers must call it. It waits
        for all of them, which does not count as work.
        """
        with self.away():
            weight = self.samples if count is None else count
            return mean_over_workers(value, weight, self.collective)

    def state_dict(self) -> dict[str, Any]:
        """Return everything learned, for a checkpoint; what one worker returns fits all."""
        self._take_arrived(self._lag)
        return self._boundary.state(self.iteration)

    def load_state_dict(self, state: Mapping[str, Any]) -> Remembered:
        """Take up what a checkpoint had learned, also with another number of workers.

        Returns what it has on this worker.
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
        """Return in one line what balancing gained so far."""
        return self._boundary.summary()

    def close(self) -> None:
        """End what runs in the background, and print the summary; done at exit by itself."""
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
        """Return what comes before the first iteration: one that is over, of no samples."""
        nothing, plan = self._nothing, self._boundary.plan
        return Iteration(self.iteration, plan, 0.0, nothing, nothing, is_done=True)

    def _kept(self) -> Share:
        """Return the batches so far whose gradients have not been exchanged."""
        last = self.now
        if last.is_done:
            return self._nothing
        return last.share if last.is_accumulated else last.kept

    def _take_arrived(self, lag: int) -> None:
        """Learn from the rows of all iterations that are new, but for the last `lag` of them."""
        while len(self._arrived) > lag:
            done, read = self._arrived.popleft()
            self._learn(done, read())

    def _learn(self, done: FinishedIteration, rows: Rows) -> None:
        self._boundary.take(rows if self.column is None else self.column.cut(rows), done)


def batches(loop: Loop, epochs: Epochs, size_of: Callable[[int], float] = float) -> Iterator[Dealt]:
    """Yield this worker's part of each iteration to the end of the epoch, beginning each.

    `size_of` returns the size that a batch of a number of samples is reported as.
    """
    while epochs.position < len(epochs):
        plan = loop.begin().plan
        dealt = epochs.deal(plan.sizes, loop.worker, loop.minimum)
        assert dealt is not None, "the epoch has not ended"
        loop.has_batch(dealt.sizes, dealt.position, size_of(len(dealt.samples)))
        epochs.advance()
        yield dealt
    epochs.end()
