"""The loop of one worker, whatever its framework: begin, has_batch, finish, take.

An adapter calls these four in every iteration. What the workers tell each other is a row per
worker, which an adapter lets ride along with its gradients: it sums `slots()` over all workers,
together with the weighted gradients, and hands the sum back to `take`.
"""

from __future__ import annotations

import atexit
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evenstep.core.coordinator import JobCoordinator
from evenstep.core.plan import Plan
from evenstep.core.policy import Policy
from evenstep.measure.timer import HostTimer, Timer
from evenstep.training.epochs import Dealt, Epochs
from evenstep.training.exchanged import Exchanged
from evenstep.training.job import agreed_job, check_coordinator, name_in, of_job
from evenstep.training.making import make_boundary
from evenstep.training.meeting import Meeting, mean_over_workers, require_agreement
from evenstep.training.names import introduce
from evenstep.training.recording import Log
from evenstep.training.reporting import Reporter
from evenstep.training.settings import Settings, choose_predictor, choose_sizes
from evenstep.training.sizes import check_sizes
from evenstep.transports.slots import WIDTH, digest


class Loop:
    """Balances the loops of workers that meet in a collective exchange of gradients.

    The settings are those of `evenstep.pytorch.Balancer`. `device` is the kind of device that the
    workers compute on; `lag` is how many exchanges later their rows are known, where a device runs
    ahead of its host. All workers must make one.
    """

    def __init__(
        self,
        meeting: Meeting,
        total: int,
        *,
        framework: str,
        mode: str = "balanced",
        shares: Sequence[float] | None = None,
        policy: str | Policy[Any] | None = None,
        predictor: str | None = None,
        minimum: int | None = None,
        maximum: int | Sequence[int] | None = None,
        granularity: int | None = None,
        coordinator: JobCoordinator | None = None,
        log: Log | None = None,
        name: str | None = None,
        summary: bool = True,
        warm_up: int = 2,
        timer: Timer | None = None,
        source: str = "measured",
        device: str = "cpu",
        fewest: int = 1,
        lag: int = 0,
    ) -> None:
        check_coordinator(coordinator)
        self.worker = meeting.worker
        self.num_workers = meeting.num_workers
        self.total = total
        self.fewest = fewest
        self.meeting = meeting
        self.minimum, granularity = choose_sizes(
            minimum, granularity, "advise", fewest, coordinator
        )
        settings = Settings(
            total, mode, shares, policy, predictor, self.minimum, maximum, False, granularity,
            "advise", warm_up,
        )  # fmt: skip
        require_agreement(settings.agreed() | agreed_job(coordinator, name), meeting)
        if coordinator is not None:
            settings = of_job(settings, coordinator, self.num_workers, fewest)
        check_sizes(total, self.minimum, self.num_workers)
        settings.check_retries(fewest)
        members, device = introduce(meeting, name_in(coordinator, name), device)
        chosen = settings.make_policy(device)
        self.timer = timer or HostTimer()
        self._boundary = make_boundary(
            settings, chosen, members, coordinator, meeting, self.away, lag, log, source, framework
        )
        self._reporter = Reporter(
            choose_predictor(chosen, predictor) if coordinator is None else None,
            self.timer, warm_up, reads=bool(log) or chosen.uses_speeds,
        )  # fmt: skip
        self._cap = settings.limit_of(self.worker, self.num_workers)
        self.iteration = self._boundary.first
        """k: iterations that have been finished."""
        self._begun = time.perf_counter()
        self._start = 0.0
        self._plan = self._boundary.plan
        self._sizes = np.zeros(self.num_workers, dtype=np.int64)
        self._place: tuple[int, ...] = ()
        self._row = np.zeros(WIDTH + self._boundary.slot_width, dtype=np.float32)
        self._done: deque[Exchanged] = deque()
        self._prints = summary and self.worker == 0
        atexit.register(self.close)

    @property
    def plan(self) -> Plan:
        """The plan of the current iteration: batch sizes of all workers."""
        return self._plan

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
        return int(self._sizes[self.worker])

    @property
    def share(self) -> float:
        """``x_i / X``: what a mean gradient of this worker weighs in the sum over all workers."""
        return self.samples / max(int(self._sizes.sum()), 1)

    def begin(self) -> Plan:
        """Begin an iteration: start the clock, and return the plan."""
        self.timer.start()
        self._start = time.perf_counter() - self._begun
        self._boundary.meet()
        self._plan = self._boundary.plan
        return self._plan

    def has_batch(self, dealt: Dealt, size: float | None = None) -> None:
        """Take note of the batches of this iteration, and of where in the data they are.

        `size` is what this worker's batch is reported as, where it is other work than its samples
        are, as when it is padded.
        """
        self._sizes, self._place = dealt.sizes, dealt.place
        self.timer.batch(self.samples if size is None or self.samples == 0 else size)

    def finish(self, device_memory: float | None = None) -> None:
        """End this worker's own work: its gradients are ready, and nobody was waited for."""
        self.timer.stop()
        self._done.append(
            Exchanged(self.iteration, self._plan, self._place, self._sizes, self._start)
        )
        self.iteration += 1
        row = self._reporter.row(self._cap, device_memory, digest(self._plan, self._place))
        self._row = np.concatenate((row, self._boundary.slot()))
        self.timer.reported()

    def slots(self) -> NDArray[np.float32]:
        """Return this worker's row in zeros, one row per worker, to be summed over all workers."""
        rows = np.zeros((self.num_workers, len(self._row)), dtype=np.float32)
        rows[self.worker] = self._row
        return rows

    def take(self, rows: NDArray[np.float32]) -> None:
        """Take the sum of all workers' slots; in the order in which iterations were finished."""
        shaped: NDArray[np.float32] = np.asarray(rows, dtype=np.float32)
        shaped = shaped.reshape(self.num_workers, len(self._row))
        self._boundary.take(shaped, self._done.popleft())

    @contextmanager
    def away(self) -> Iterator[None]:
        """Do what is not this worker's own work."""
        self.timer.pause()
        try:
            yield
        finally:
            self.timer.resume()

    def agree(self, settings: Mapping[str, Any]) -> None:
        """Raise InvalidSetting, on all workers, unless all of them have the same settings."""
        require_agreement(settings, self.meeting)

    def mean(self, value: float) -> float:
        """Return the mean over all samples of the iteration of what is a mean over this batch.

        All workers must call it. It waits for all of them, which does not count as work.
        """
        with self.away():
            return mean_over_workers(value, self.samples, self.meeting)

    def state_dict(self) -> dict[str, Any]:
        """Return everything learned, for a checkpoint; what one worker returns fits all."""
        return self._boundary.state(self.iteration)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up what a checkpoint had learned, also with another number of workers."""
        known = self._boundary.restore(state, self.worker)
        if known.speed is not None:
            self._reporter.remember(known.speed)
        self._done.clear()
        self.iteration = int(state["iteration"])
        self._plan = self._boundary.plan

    def summary(self) -> str:
        """Return in one line what balancing gained so far."""
        return self._boundary.account.summary.line()

    def close(self) -> None:
        """End what runs in the background, and print the summary; done at exit by itself."""
        atexit.unregister(self.close)
        self._reporter.close()
        self._boundary.account.close(self.iteration)
        if self._prints:
            self._prints = False
            print(self.summary(), file=sys.stderr)


def batches(loop: Loop, epochs: Epochs, size_of: Callable[[int], float] = float) -> Iterator[Dealt]:
    """Yield this worker's part of each iteration to the end of the epoch, beginning each.

    `size_of` says what a batch of so many samples is reported as.
    """
    while epochs.position < len(epochs):
        plan = loop.begin()
        dealt = epochs.deal(plan.sizes, loop.worker, loop.minimum)
        assert dealt is not None, "the epoch has not ended"
        loop.has_batch(dealt, size_of(len(dealt.samples)))
        epochs.advance()
        yield dealt
    epochs.end()
