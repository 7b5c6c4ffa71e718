"""The balancer of a DDP model: what a training script talks to.

It sits between the loader, which begins every iteration, and DDP's communication hook, which ends
it. At the end of an iteration each worker's report rides on the gradient exchange; at the start
of the next one every worker works out the same plan from the same reports.
"""

from __future__ import annotations

import atexit
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import Dataset

from evenstep.core.arrays import Ints
from evenstep.core.coordinator import JobCoordinator
from evenstep.core.plan import Plan
from evenstep.core.policy import Policy
from evenstep.errors import InvalidSetting
from evenstep.measure.timer import Timer
from evenstep.pytorch.accumulation import AccumulationWatch
from evenstep.pytorch.buffers import average_buffers, has_batch_norm, stop_broadcasting
from evenstep.pytorch.checks import check_model, side_group
from evenstep.pytorch.compatibility import warn_of_new_sizes
from evenstep.pytorch.compiling import mark_batches, without_compiler
from evenstep.pytorch.counting import check_policy
from evenstep.pytorch.exchange import GradientExchange, Share, UserHook
from evenstep.pytorch.fellow import Fellows
from evenstep.pytorch.group_meeting import GroupMeeting
from evenstep.pytorch.handed import Handed
from evenstep.pytorch.hooking import register
from evenstep.pytorch.identity import gather_names
from evenstep.pytorch.iteration import Iteration
from evenstep.pytorch.loader import BalancedLoader, make_loader
from evenstep.pytorch.local_loader import LocalLoader
from evenstep.pytorch.local_making import make_local_loader
from evenstep.pytorch.local_migration import Lent
from evenstep.pytorch.memory import BatchLimit, peak_memory
from evenstep.pytorch.micro_batches import LossOf, MicroBatches, exchange_kept
from evenstep.pytorch.rider import Seat
from evenstep.pytorch.settling import settle
from evenstep.pytorch.straggler import Checkpoint, Restart
from evenstep.pytorch.timers import make_timer
from evenstep.pytorch.weighing import Weighing, as_count, as_number
from evenstep.training.exchanged import Exchanged
from evenstep.training.job import check_coordinator, name_in
from evenstep.training.making import make_boundary
from evenstep.training.meeting import mean_over_workers
from evenstep.training.recording import Log
from evenstep.training.reporting import Reporter
from evenstep.training.settings import Settings, choose_predictor, choose_sizes
from evenstep.transports.slots import WIDTH, Row, digest


class Balancer:
    """Balances a DistributedDataParallel model over its workers.

    `total` is X, the samples of all workers in one iteration; everything else has a default.
    `mode` is `balanced`, `static` (with `shares`), `observe` (plain BSP, and a word at the end on
    what balancing would have gained) or `off`. `policy` and `predictor` take the short form of
    `evenstep simulate`, `policy` also a policy of your own. A communication hook of your own goes
    into `comm_hook`. A `coordinator`, as `evenstep.connect` returns it, brings the plans of a
    manager, by the settings of the job there. `log` is the run log that worker 0 writes, or a list
    of run logs and loggers (`evenstep.runlog.loggers`). `name` is what this worker is called in it,
    and found again by after a restart: the name in its job, or its host and device, unless you say
    so.
    """

    def __init__(
        self,
        model: DistributedDataParallel,
        total: int,
        *,
        mode: str = "balanced",
        shares: Sequence[float] | None = None,
        policy: str | Policy[Any] | None = None,
        predictor: str | None = None,
        minimum: int | None = None,
        maximum: int | Sequence[int] | None = None,
        micro_batches: bool = False,
        granularity: int | None = None,
        straggler: str = "advise",
        checkpoint: Checkpoint | None = None,
        comm_hook: UserHook | None = None,
        coordinator: JobCoordinator | None = None,
        log: Log | None = None,
        name: str | None = None,
        summary: bool = True,
        warm_up: int = 2,
        timer: Timer | None = None,
        source: str = "measured",
    ) -> None:
        given, model = model, without_compiler(model)
        check_model(model)
        check_coordinator(coordinator)
        self._model = model
        group: dist.ProcessGroup = model.process_group
        self.worker = dist.get_rank(group)
        self.num_workers = dist.get_world_size(group)
        self.total = total
        self.fewest = 2 if has_batch_norm(model) else 1
        """The smallest batch that the model can be trained on."""
        self.minimum, granularity = choose_sizes(
            minimum, granularity, straggler, self.fewest, coordinator
        )
        settings = Settings(
            total, mode, shares, policy, predictor, self.minimum, maximum, micro_batches,
            granularity, straggler, warm_up,
        )  # fmt: skip
        self.side_group = side_group(group)
        self._handed = Handed()
        self.meeting = GroupMeeting(self.side_group, self._handed)
        device = next(model.parameters()).device
        self._settings = settings = settle(
            settings, model, self.fewest, comm_hook, checkpoint, coordinator, name, self.meeting
        )
        self._restart = Restart(checkpoint, self.worker, self.side_group)
        self._limit = BatchLimit(
            settings.limit_of(self.worker, self.num_workers), self.fewest, peak_memory(device)
        )
        self._weighing = Weighing(total)
        self._timer = timer or make_timer(device)
        self._micro_batches = MicroBatches(
            model, self._limit, self._weighing, micro_batches, self._timer.spoil
        )
        chosen = settings.make_policy(device.type)
        self._lag = 1 if device.type == "cuda" else 0
        members = gather_names(name_in(coordinator, name), device, self.meeting)
        self._boundary = make_boundary(
            settings, chosen, members, coordinator, self.meeting, self._away, self._lag, log,
            source,
        )  # fmt: skip
        self._reporter = Reporter(
            # A coordinator predicts for all workers.
            choose_predictor(chosen, predictor) if coordinator is None else None, self._timer,
            # A static graph rebuilds its buckets, and waits for others meanwhile, one later.
            warm_up + model.static_graph, reads=bool(log) or chosen.uses_speeds,
        )  # fmt: skip
        self._seat = Seat()
        self._exchange = GradientExchange(
            group, self._weighing, self._finish, self._handed, comm_hook, self._lag,
            width=WIDTH + self._boundary.slot_width + Seat.width,
        )  # fmt: skip
        self._accumulation = AccumulationWatch(model, self._on_accumulated)
        self.iteration = self._boundary.first
        """k: iterations whose gradients were exchanged."""
        self._begun = time.perf_counter()
        self._nothing = self._exchange.share
        self._now = self._before_the_first()
        self._prints = summary and self.worker == 0
        self._fellows = Fellows(model, self._exchange, self._timer, self._handed)
        stop_broadcasting(model)
        on_forward = torch.compiler.disable(self._on_forward)
        model.module.register_forward_pre_hook(on_forward)
        if mode == "balanced":
            mark_batches(model, lambda: self._now.batch.samples)
            warn_of_new_sizes(given, granularity, device)
        register(model, self._exchange)
        atexit.register(self.close)

    @property
    def plan(self) -> Plan:
        """The plan of the current iteration: batch sizes of all workers."""
        return self._now.plan

    @property
    def newest_plan(self) -> Plan:
        """The plan of the next iteration, as far as it is known."""
        return self._boundary.plan

    @property
    def batch_size(self) -> int:
        """This worker's planned batch size."""
        return int(self.plan.sizes[self.worker])

    def loader(self, dataset: Dataset[Any], **settings: Any) -> BalancedLoader:
        """Return this worker's batches of a data set, in place of a sampler and a DataLoader.

        Takes `shuffle`, `sampler`, `drop_last`, `seed`, `seed_samples`, `counts`, `collate_fn`,
        `num_workers`, and the other settings of a DataLoader. All workers must call it, also for
        a loader that only one of them will use.
        """
        loader = make_loader(self, dataset, settings)
        if settings.get("counts") is not None:
            check_policy(self._boundary.policy)
        return loader

    def local_loader(self, partition: Any, **settings: Any) -> LocalLoader:
        """Return this worker's batches of samples of its own: a partition, its folder, a data set.

        Takes `rule` (when samples migrate), `importance`, `serving`, `shuffle`, `seed`, and the
        settings of a DataLoader. All workers must call it.
        """
        note = self._boundary.account.note
        lent = Lent(self._seat, self._away, self._timer.spoil, note, self.meeting)
        return make_local_loader(self, partition, lent, settings)

    def backward(self, loss_of: LossOf, *batch: Any) -> torch.Tensor:
        """Run forward and backward passes of a batch, in pieces where memory demands it.

        In place of ``loss = loss_of(*batch); loss.backward()``, where `loss_of` returns the mean
        loss over the samples of whatever piece of the batch it is given. When memory runs out the
        same samples are run again in smaller pieces. Returns the loss, to be looked at: the mean
        over the batch, or, where `loss_of` weighs by counts, the sum of what it has weighed.
        """
        self._fellows.require_none(
            "balancer.backward goes with one model, as the passes of a further one would be "
            "exchanged piece by piece"
        )
        if self._model.static_graph:
            raise InvalidSetting(
                "balancer.backward keeps gradients under no_sync, which DDP refuses in its first "
                "pass with static_graph=True: leave that out"
            )
        keeps = not self._model.require_backward_grad_sync
        self._now.is_guarded = True
        if self._now.is_benched:
            # Its samples are borrowed, and weigh nothing.
            self._weighing.skip()
            loss = torch.zeros(())
        else:
            with self._accumulation.muted():
                loss = self._micro_batches.run(loss_of, batch, self._now.batch.samples)
        if keeps:
            self._on_accumulated()
        else:
            exchange_kept(self._model)
        return loss

    def weigh(self, loss: torch.Tensor, count: float | torch.Tensor) -> torch.Tensor:
        """Return the loss to call backward on, where it is a mean over `count` tokens or pixels.

        Gradients are then those of the mean over all workers' tokens, also accumulated ones. All
        workers must call it once for each backward pass, or none of them for any.
        """
        self._fellows.require_none(
            "losses can be weighed by counts where the loop trains one model"
        )
        self._now.batch.require_samples()
        return self._weighing.weigh(loss, self._counted(count))

    def include(self, model: DistributedDataParallel, comm_hook: UserHook | None = None) -> None:
        """Weigh the gradients of a further model that trains on the same batches, as in a GAN.

        Give the balancer to the model that is trained last in the loop's body: what is done after
        its backward pass is not measured. All workers must call it.
        """
        model = without_compiler(model)
        self._fellows.add(model, comm_hook, self.minimum, self._settings.mode)
        if has_batch_norm(model):
            self.fewest = 2
            self._settings.check_retries(self.fewest)

    def mean(self, value: float | torch.Tensor, count: float | torch.Tensor | None = None) -> float:
        """Return the mean over all samples of the iteration of what is a mean over this batch.

        With a `count`, it is the mean over all that is counted, such as tokens. All workers must
        call it. It waits for all of them, which does not count as work.
        """
        weight = self._now.batch.samples if count is None else self._counted(count)
        with self._away():
            return mean_over_workers(as_number(value), weight, self.meeting)

    def average_buffers(self) -> None:
        """Average the buffers (BatchNorm's running statistics), weighted by batch sizes.

        For evaluation and checkpoints in mid-epoch; a loader does it at the end of an epoch.
        All workers must call it.
        """
        with self._away():
            for model in (self._model, *self._fellows.models):
                weight = self.batch_size / self.total
                average_buffers(model.module, weight, model.process_group, self._handed)

    def state_dict(self) -> dict[str, Any]:
        """Return everything learned, for a checkpoint; what one worker returns fits all."""
        self._take_reports()
        return self._boundary.state(self.iteration)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up what a checkpoint had learned, also with another number of workers.

        A worker is found again by its name; about newcomers nothing is known yet.
        """
        known = self._boundary.restore(state, self.worker)
        if known.speed is not None:
            self._reporter.remember(known.speed)
        if known.cap is not None:
            self._limit.expect(known.cap)
        self._exchange.forget()
        self.iteration = int(state["iteration"])
        self._now = self._before_the_first()

    def summary(self) -> str:
        """Return in one line what balancing gained so far."""
        return self._boundary.account.summary.line()

    def close(self) -> None:
        """End what runs in the background, and print the summary; done at exit by itself."""
        atexit.unregister(self.close)
        try:
            self._seat.close()
            self._reporter.close()
            self._take_reports(lag=0)
        finally:
            self._boundary.account.close(self.iteration)
        if self._prints:
            self._prints = False
            print(self.summary(), file=sys.stderr)

    def begin(self) -> Iteration:
        """Begin an iteration: learn from the last one and plan this one."""
        # Before anything else: what a slow worker needs for this is part of what it takes.
        self._timer.start()
        last = self._now
        kept = self._nothing if last.is_done else last.share if last.is_accumulated else last.kept
        self._accumulation.forget()
        start = time.perf_counter() - self._begun
        self._take_reports()
        self._boundary.meet()
        self._restart.act_on(self._boundary)
        self._now = Iteration(self.iteration, self._boundary.plan, start, kept, self._nothing)
        return self._now

    def has_batch(
        self,
        sizes: Ints,
        place: tuple[int, ...],
        size: float | None = None,
        importance: Ints | None = None,
    ) -> None:
        """Take note of the batches of this iteration, and of where in the data they are.

        `size` is this worker's in average samples, where samples are unequal work; `importance` is
        what gradients count for, if not for their samples.
        """
        self._now.batch, self._now.place = Share(sizes, self.worker, importance), place
        self._exchange.share = self._now.share
        samples = self._now.batch.samples
        self._timer.batch(samples if size is None or samples == 0 else size)

    def interrupted(self) -> Iteration:
        """Return the iteration that the iterations of another loader now come in the middle of."""
        return self._now

    def go_on(self, iteration: Iteration, last: Iteration) -> None:
        """Go on with an interrupted iteration after the `last` one of another loader.

        How much of the time was its own nobody can tell any more.
        """
        if self._now is last and not iteration.is_done and iteration.number == self.iteration:
            self._now = iteration
            self._exchange.share = iteration.share
            self._timer.start()
            self._timer.batch(iteration.batch.samples)
            self._timer.spoil()

    def _before_the_first(self) -> Iteration:
        """Return what comes before the first iteration: one that is over, of no samples."""
        nothing = self._nothing
        return Iteration(self.iteration, self._boundary.plan, 0.0, nothing, nothing, is_done=True)

    def _counted(self, count: float | torch.Tensor) -> float:
        """Return a count of this batch: 0 where its samples are borrowed."""
        number = as_count(count)
        return 0.0 if self._now.is_benched else number

    def _on_accumulated(self) -> None:
        """Keep what was done for a later exchange: a backward pass under no_sync has ended."""
        self._weighing.end_pass()
        if not self._now.is_done:
            self._timer.keep()
            self._now.is_accumulated = True

    def _on_forward(self, model: torch.nn.Module, inputs: Any) -> None:
        """Let an evaluation before the backward pass not count as work of the iteration."""
        if model.training or torch.is_grad_enabled():
            self._timer.resume()
        else:
            self._timer.pause()

    def _finish(self) -> tuple[Row, Exchanged]:
        """End the iteration's own work, and return this worker's row."""
        self._timer.stop()
        now = self._now
        now.is_done = True
        done = Exchanged(self.iteration, now.plan, now.place, self._exchange.share.sizes, now.start)
        self.iteration += 1
        memory = self._micro_batches.readings(now.is_guarded, now.batch.samples)
        row = self._reporter.row(*memory, digest(now.plan, now.place))
        row = np.concatenate((row, self._boundary.slot(), self._seat.slot()))
        self._timer.reported()
        return row, done

    @contextmanager
    def _away(self) -> Iterator[None]:
        """Do what is not this worker's own work."""
        self._timer.pause()
        try:
            yield
        finally:
            self._timer.resume()

    def _take_reports(self, lag: int | None = None) -> None:
        """Learn from the reports of all iterations that are new."""
        for rows, done in self._exchange.take_rows(lag):
            self._boundary.take(self._seat.cut(rows), done)
