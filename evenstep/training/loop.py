"""The loop of one worker in any framework: begin, has_batch, finish, take.

An adapter calls these four in every iteration. The reports of the workers travel with the
gradients: the adapter sums `slots()` over all workers, together with the weighted gradients, and
passes the sum to `take`. Where a device runs ahead of its host, it passes a function that reads the
sum to `arrive` instead; the loop calls it when a later iteration begins.

Where a script may fetch batches ahead, iterations are begun before the gradients of earlier ones
are computed. They are outstanding until then, the oldest one comes first, and an adapter that knows
better says which batch the gradients are computed on, with `use`.
"""

from __future__ import annotations

import atexit
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evenstep.core import Ints, Plan, Policy, sealed
from evenstep.measure.timer import Timer
from evenstep.training.boundary import Boundary
from evenstep.training.checkpoint import Remembered
from evenstep.training.collective import Collective, mean_over_workers, require_agreement
from evenstep.training.epochs import Dealt, Epochs
from evenstep.training.heartbeat import AWAY, EXCHANGE, WORK, Heartbeat, Progress
from evenstep.training.iteration import FinishedIteration, Iteration, Pass, Share
from evenstep.training.report_rows import WIDTH, ExtraColumn, Row, digest
from evenstep.training.reporter import Reporter
from evenstep.training.settings import Settings, check_sizes

MOST_PASSED_OVER = 64
"""Iterations that may be trained on later than ones that were handed out after them."""

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
    device runs ahead of its host. `column` is an extra column after the rows. Without
    `fetches_ahead`, the batch that was requested last is the one that gradients are computed on.
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
        fetches_ahead: bool = False,
    ) -> None:
        self.collective = collective
        self.worker = collective.worker
        self.num_workers = collective.num_workers
        self.settings = settings
        self.total = settings.total
        """X: samples of all workers in the next iteration."""
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
        self._begun = self._requested = time.perf_counter()
        self._nothing = Share(np.zeros(self.num_workers, dtype=np.int64), self.worker)
        self._fetches_ahead = fetches_ahead
        self.now = self._retired = self._begun_last = self._before_the_first()
        """The running iteration, or the last one."""
        self.outstanding: list[Iteration] = []
        """Iterations whose gradients were not computed yet, the oldest first."""
        self.passed_over: deque[Iteration] = deque(maxlen=MOST_PASSED_OVER)
        """Iterations for whose batches later ones of the same pass were used."""
        self._kept: list[Iteration] = []
        """Iterations whose gradients have not been exchanged."""
        self._after: list[tuple[Pass, Callable[[], None]]] = []
        """Functions to call after the last iteration of a pass."""
        self._row: Row = np.zeros(self.row_width, dtype=np.float32)
        self._finished: FinishedIteration | None = None
        self._arrived: deque[tuple[FinishedIteration, Callable[[], Rows]]] = deque()
        self._prints = summary and self.worker == 0
        self.heartbeat: Heartbeat | None = None
        """The signs of life of all workers, if they share a store."""
        self._num_begun = 0
        self._is_loading = self._is_exchanging = self._is_away = False
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
        return self._share_of(self.now)

    @property
    def weight(self) -> float:
        """``x_i / X``: the weight of this worker's mean gradient in the sum over all workers."""
        return self.now.batch.weight

    @property
    def row_width(self) -> int:
        """Numbers in the row of each worker."""
        extra = 0 if self.column is None else self.column.width
        return WIDTH + self._boundary.slot_width + extra

    def require_min_trainable(self, min_trainable: int) -> None:
        """Raise the smallest batch; raises InvalidSetting where a plan may have a smaller one."""
        self.min_trainable = max(self.min_trainable, min_trainable)
        self.settings.check_retries(self.min_trainable)

    def change_total(self, total: int) -> None:
        """Change X from the next batch on; all workers must do so at the same boundary.

        Otherwise the next exchange of reports raises DivergedPlans.
        """
        if total == self.total:
            return
        check_sizes(total, self.minimum, self.num_workers)
        upcoming = self.iteration if self.now.is_done else self.iteration + 1
        self._boundary.change_total(total, upcoming)
        self.total = total

    def begin(self, of: Pass | None = None) -> Iteration:
        """Begin an iteration: start the timer, learn from arrived reports, and take the plan.

        `of` is the pass over a loader that its batch comes from.
        """
        of = of or Pass()
        self._num_begun += 1
        self._is_loading, self._is_exchanging, self._is_away = True, False, False
        self.leave_out(*(o for o in self.outstanding if _is_evaluation(o.of, of)))
        self._call_after()
        if not self._fetches_ahead or self.now.is_retired:
            # First, as a slow worker also takes longer for the following, which is part of its
            # work. A batch that is fetched ahead is part of the work on the running iteration.
            self.timer.start()
        start = time.perf_counter() - self._begun
        self._take_arrived(self._lag)
        self._boundary.meet()
        straggler = self._boundary.straggler
        if self._restart is not None and straggler is not None:
            self._restart(straggler, self._boundary.workers[straggler])
        of.num_begun += 1
        begun = Iteration(self.iteration, self._boundary.plan, start, self._nothing, of)
        self._begun_last, self._requested = begun, time.perf_counter()
        if not self._fetches_ahead:
            self.now = begun
        return begun

    def has_batch(
        self,
        sizes: Ints,
        position: tuple[int, ...],
        size: float | None = None,
        importance: Ints | None = None,
    ) -> None:
        """Record the batches of all workers in the iteration begun last, and their position.

        `size` is the reported size of this worker's batch, if the work is not proportional to its
        samples, as with padding. `importance` is what gradients count for, if not their samples.
        """
        begun, samples = self._begun_last, int(sizes[self.worker])
        begun.batch, begun.position = Share(sizes, self.worker, importance), position
        begun.size = samples if size is None or samples == 0 else size
        begun.loading = time.perf_counter() - self._requested
        self._is_loading = False
        if self._fetches_ahead:
            self.outstanding.append(begun)
            if not self.now.is_retired:
                return
            self.now = self.outstanding[0]
        self.timer.batch(self.now.size)

    def has_no_batch(self) -> None:
        """Record that there is no batch for the iteration begun last, as its loader has ended."""
        self._is_loading = False

    def use(self, iteration: Iteration) -> None:
        """Compute gradients on the batch of this iteration from now on.

        It may have been handed out before others, or its gradients may be computed again. Older
        batches of the same pass, and of passes that have ended, are passed over: they were probably
        left out by the script.
        """
        before, self.now, self._is_away = self.now, iteration, False
        if before.is_retired and not iteration.is_done:
            # Its batch was fetched ahead, or is used once more before an exchange.
            self.timer.start()
            self.timer.batch(0 if iteration in self._kept else iteration.size)
        elif before is not iteration and before.of is iteration.of and not iteration.is_done:
            # The work on the batch that was left out does not count.
            self.timer.start()
            self.timer.add(iteration.loading)
            self.timer.batch(iteration.size)
        if iteration in self.outstanding:
            older = self.outstanding[: self.outstanding.index(iteration)]
            passed_over = [o for o in older if o.of is iteration.of or o.of.has_ended]
            self.leave_out(*passed_over)
            self.passed_over.extend(passed_over)

    def leave(self, of: Pass) -> None:
        """End a pass; its batches may still be trained on.

        If none of them was so far, the pass has probably interrupted another one, whose own batch
        processing time is then unknown.
        """
        of.has_ended = True
        self.has_no_batch()
        if not of.has_trained and not self.now.is_retired and self.now.of is not of:
            self.timer.spoil()

    def after(self, of: Pass, call: Callable[[], None]) -> None:
        """Call a function after the last iteration of a pass, which is exhausted.

        At once, unless batches were fetched ahead: then it is when an iteration begins. Not at all
        if nothing was trained on, as in an evaluation, which a worker may do alone.
        """
        self._after.append((of, call))
        self._call_after()

    def forget(self, of: Pass) -> None:
        """Leave out all batches of a pass; if it has not ended, they may be used all the same."""
        left_out = [one for one in self.outstanding if one.of is of]
        self.leave_out(*left_out)
        if not of.has_ended:
            self.passed_over.extend(left_out)

    def leave_out(self, *iterations: Iteration) -> None:
        """Give up the batches of some iterations, which nothing was trained on."""
        for iteration in iterations:
            self.outstanding.remove(iteration)
            if iteration is self.now:
                self.now = self._retired

    def keep(self) -> None:
        """Accumulate the gradients of this iteration for a later exchange."""
        self.timer.keep()
        if not self.now.is_done:
            self.now.is_accumulated = True
        if self.now not in self._kept:
            self._kept.append(self.now)
        self.retire(self.now)

    def finish(self, device_memory: float | None = None) -> None:
        """End this worker's own work: its gradients are ready, before any wait for the others."""
        self._finished = self.stop()
        self.report(device_memory)

    def stop(self, iteration: Iteration | None = None) -> FinishedIteration:
        """Stop the timer of the iteration's own work, and return the finished iteration."""
        self.timer.stop()
        ended = iteration or self.now
        ended.is_done = True
        sizes = self._share_of(ended).sizes
        done = FinishedIteration(self.iteration, ended.plan, ended.position, sizes, ended.start)
        self._kept.clear()
        self.retire(ended)
        self.iteration += 1
        self._is_exchanging = True
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
        self._is_exchanging = False
        shaped: Rows = np.asarray(rows, dtype=np.float32)
        self._learn(self._finished, shaped.reshape(self.num_workers, self.row_width))

    def arrive(self, done: FinishedIteration, read: Callable[[], Rows]) -> None:
        """Store how to read the rows about an iteration, for when a later one begins."""
        self._arrived.append((done, read))
        self._is_exchanging = False

    def pause(self) -> None:
        """Pause the timer of this worker's own work, during an evaluation, say."""
        self._is_away = True
        self.timer.pause()

    def resume(self) -> None:
        """Continue the work after `pause`."""
        self._is_away = False
        self.timer.resume()

    @contextmanager
    def away(self) -> Iterator[None]:
        """Pause the timer of this worker's own work."""
        self.pause()
        try:
            yield
        finally:
            self.resume()

    def progress(self) -> Progress:
        """Return how far this worker has come; other threads may ask too."""
        phase = AWAY
        if self._is_exchanging:
            phase = EXCHANGE
        elif not self._is_away and (self._is_loading or not self.now.is_retired):
            phase = WORK
        return Progress(phase, self.iteration, self._num_begun)

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Raise WorkerLost, which names the missing worker, where an exchange fails."""
        try:
            yield
        except RuntimeError as error:
            lost = None if self.heartbeat is None else self.heartbeat.explain(error)
            if lost is None:
                raise
            raise lost from error

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
        return sealed(self._boundary.state(self.iteration))

    def load_state_dict(self, state: Mapping[str, Any]) -> Remembered:
        """Restore a checkpoint, also one of another number of workers, or change nothing.

        Returns what it holds about this worker.
        """
        known = self._boundary.restore(state, self.worker)
        self.total = self._boundary.plan.total
        if known.speed is not None:
            self._reporter.remember(known.speed)
        self._finished = None
        self._arrived.clear()
        self.outstanding.clear()
        self.passed_over.clear()
        self._kept.clear()
        self._is_loading = self._is_exchanging = False
        self.iteration = int(state["iteration"])
        self.now = self._retired = self._before_the_first()
        return known

    def summary(self) -> str:
        """Return one line on the time that balancing has saved so far."""
        return self._boundary.summary()

    def close(self) -> None:
        """Stop background work and print the summary; this also happens at exit."""
        atexit.unregister(self.close)
        heartbeat, self.heartbeat = self.heartbeat, None
        try:
            if heartbeat is not None:
                heartbeat.close()
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
        plan = self._boundary.plan
        return Iteration(self.iteration, plan, 0.0, self._nothing, is_done=True)

    def _share_of(self, last: Iteration) -> Share:
        """Return the batches of an exchange, of which this is the last one."""
        earlier = [kept.batch for kept in self._kept if kept is not last]
        return sum(earlier, last.batch)

    def retire(self, iteration: Iteration) -> None:
        """Record that the gradients of an iteration were computed."""
        iteration.of.has_trained = True
        self._retired = iteration
        for waiting in (self.outstanding, self.passed_over):
            if iteration in waiting:
                waiting.remove(iteration)

    def _call_after(self) -> None:
        """Call the functions that are due after passes."""
        waiting, self._after = self._after, []
        for of, call in waiting:
            is_outstanding = any(one.of is of for one in self.outstanding)
            if is_outstanding and not (of.is_unused and of.num_begun > 1):
                self._after.append((of, call))
            elif of.has_trained:
                call()

    def _take_arrived(self, lag: int) -> None:
        """Learn from the rows of all new iterations except the last `lag` of them."""
        while len(self._arrived) > lag:
            done, read = self._arrived.popleft()
            self._learn(done, read())

    def _learn(self, done: FinishedIteration, rows: Rows) -> None:
        self._boundary.take(rows if self.column is None else self.column.cut(rows), done)


def _is_evaluation(one: Pass, running: Pass) -> bool:
    """Whether a pass has ended without any training, and the running pass continues after it.

    A single batch may have been fetched ahead, unless training was going on before.
    """
    return one is not running and one.is_unused and (one.num_begun > 1 or running.has_trained)


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
