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

from evenstep.balancer import Balancer as CoreBalancer
from evenstep.core.arrays import Ints
from evenstep.core.plan import Plan
from evenstep.core.report import Reports
from evenstep.measure.timer import Timer
from evenstep.policies.policy import Policy, even_sizes
from evenstep.pytorch.accumulation import AccumulationWatch
from evenstep.pytorch.agreement import require_agreement
from evenstep.pytorch.buffers import average_buffers, has_batch_norm, stop_broadcasting
from evenstep.pytorch.checks import (
    MARK,
    check_hook,
    check_model,
    check_names,
    check_sizes,
    side_group,
)
from evenstep.pytorch.compatibility import check_normalisation, warn_of_new_sizes
from evenstep.pytorch.compiling import mark_batches, without_compiler
from evenstep.pytorch.exchange import GradientExchange, Share, UserHook
from evenstep.pytorch.fellow import Fellow, check_fellow
from evenstep.pytorch.iteration import Exchanged, Iteration
from evenstep.pytorch.loader import BalancedLoader
from evenstep.pytorch.recording import Recorder
from evenstep.pytorch.reporting import Reporter
from evenstep.pytorch.settings import choose_policy, choose_predictor, name_of
from evenstep.pytorch.summary import Summary
from evenstep.pytorch.timers import make_timer
from evenstep.transports.slots import Row, check_digests, digest, read_rows


class Balancer:
    """Balances a DistributedDataParallel model over its workers.

    `total` is X, the samples of all workers in one iteration; everything else has a default.
    `mode` is `balanced`, `static` (with `shares`), `observe` (plain BSP, and a word at the end on
    what balancing would have gained) or `off`. `policy` and `predictor` take the short form of
    `evenstep simulate`, `policy` also a policy of your own. A communication hook of your own goes
    into `comm_hook`. `log` is the run log that worker 0 writes, in which the workers have `names`,
    or are numbered.
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
        maximum: int | None = None,
        granularity: int = 1,
        comm_hook: UserHook | None = None,
        log: str | None = None,
        names: Sequence[str] | None = None,
        summary: bool = True,
        warm_up: int = 2,
        timer: Timer | None = None,
        source: str = "measured",
    ) -> None:
        given, model = model, without_compiler(model)
        check_model(model)
        self._model = model
        group: dist.ProcessGroup = model.process_group
        self.worker = dist.get_rank(group)
        self.num_workers = dist.get_world_size(group)
        self.total = total
        self._mode = mode
        self.fewest = 2 if has_batch_norm(model) else 1
        """The smallest batch that the model can be trained on."""
        self.minimum = self.fewest if minimum is None else minimum
        self.side_group = side_group(group)
        device = next(model.parameters()).device
        # Before anything else is checked: who stops here alone leaves the others waiting.
        require_agreement(
            {
                "total": total, "mode": mode, "shares": None if shares is None else tuple(shares),
                "policy": name_of(policy), "predictor": predictor, "minimum": self.minimum,
                "maximum": maximum, "granularity": granularity, "device": device.type,
                "comm_hook": comm_hook is not None, "warm_up": warm_up,
                "names": None if names is None else tuple(names),
            },
            self.side_group,
        )  # fmt: skip
        check_sizes(total, self.minimum, self.num_workers)
        check_names(names, self.num_workers)
        check_hook(comm_hook)
        check_normalisation(model, mode)
        chosen = choose_policy(mode, policy, shares, device, maximum)
        self._lag = 1 if device.type == "cuda" else 0
        self._core = CoreBalancer(
            names or [str(worker) for worker in range(self.num_workers)], total, chosen,
            minimum=self.minimum, granularity=granularity, delay=self._lag,
        )  # fmt: skip
        self._timer = timer or make_timer(device)
        self._reporter = Reporter(
            choose_predictor(chosen, predictor), self._timer, device,
            # A static graph rebuilds its buckets, and waits for others meanwhile, one later.
            warm_up + model.static_graph, reads=bool(log),
        )  # fmt: skip
        self._exchange = GradientExchange(group, self._finish, comm_hook, self._lag)
        self._accumulation = AccumulationWatch(model, self._on_accumulated)
        self.iteration = 0
        """k: iterations whose gradients were exchanged."""
        self._begun = time.perf_counter()
        self._nothing = self._exchange.share
        self._now = Iteration(0, self._core.plan, 0.0, self._nothing, self._nothing, is_done=True)
        self._summary = Summary(even_sizes(total, self._core.limits))
        self._recorder = self._make_recorder(log, mode, predictor, source)
        self._prints = summary and self.worker == 0
        self._fellows: list[Fellow] = []
        stop_broadcasting(model)
        on_forward = torch.compiler.disable(self._on_forward)
        model.module.register_forward_pre_hook(on_forward)
        if mode == "balanced":
            mark_batches(model, lambda: self._now.batch.samples)
            warn_of_new_sizes(given, granularity, device)
        model.register_comm_hook(None, self._exchange.hook)
        setattr(model, MARK, True)
        atexit.register(self.close)

    @property
    def plan(self) -> Plan:
        """The plan of the current iteration: batch sizes of all workers."""
        return self._now.plan

    @property
    def newest_plan(self) -> Plan:
        """The plan of the next iteration, as far as it is known."""
        return self._core.plan

    @property
    def batch_size(self) -> int:
        """This worker's planned batch size."""
        return int(self.plan.sizes[self.worker])

    def loader(self, dataset: Dataset[Any], **settings: Any) -> BalancedLoader:
        """Return this worker's batches of a data set, in place of a sampler and a DataLoader.

        Takes `shuffle`, `sampler`, `drop_last`, `seed`, `seed_samples`, `collate_fn`,
        `num_workers`, and the other settings of a DataLoader. All workers must call it, also for
        a loader that only one of them will use.
        """
        loader = BalancedLoader(self, dataset, **settings)
        require_agreement(loader.common_settings, self.side_group)
        loader.check()
        return loader

    def weigh(self, model: DistributedDataParallel, comm_hook: UserHook | None = None) -> None:
        """Weigh the gradients of a further model that trains on the same batches, as in a GAN.

        Give the balancer to the model that is trained last in the loop's body: what is done after
        its backward pass is not measured. All workers must call it.
        """
        model = without_compiler(model)
        check_fellow(model, self._model, self.minimum)
        check_normalisation(model, self._mode)
        self._fellows.append(Fellow(model, self._exchange, self._timer, comm_hook))
        if has_batch_norm(model):
            self.fewest = 2

    def mean(self, value: float | torch.Tensor) -> float:
        """Return the mean over all samples of the iteration of what is a mean over this batch.

        All workers must call it. It waits for all of them, which does not count as work.
        """
        samples = self._now.batch.samples
        summed = float(value) * samples if samples else 0.0
        mine = torch.tensor([summed, float(samples)], dtype=torch.float64)
        with self._away():
            dist.all_reduce(mine, group=self.side_group)
        return float(mine[0] / mine[1]) if mine[1] else float("nan")

    def average_buffers(self) -> None:
        """Average the buffers (BatchNorm's running statistics), weighted by batch sizes.

        For evaluation and checkpoints in mid-epoch; a loader does it at the end of an epoch.
        All workers must call it.
        """
        with self._away():
            for model in (self._model, *(fellow.model for fellow in self._fellows)):
                average_buffers(model, self.batch_size / self.total, model.process_group)

    def state_dict(self) -> dict[str, Any]:
        """Return everything learned, for a checkpoint; what one worker returns fits all."""
        self._take_reports()
        arrays = {name: array.tolist() for name, array in self._core.state().items()}
        return {"iteration": self.iteration, "balancer": arrays}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up what a checkpoint of the same number of workers had learned."""
        fresh = self._core.state()
        arrays = {
            name: np.array(values, dtype=fresh[name].dtype)
            for name, values in state["balancer"].items() if name in fresh
        }  # fmt: skip
        self._core.restore(arrays)
        self._exchange.forget()
        self.iteration = int(state["iteration"])
        self._now = Iteration(
            self.iteration, self._core.plan, 0.0, self._nothing, self._nothing, is_done=True
        )

    def summary(self) -> str:
        """Return in one line what balancing gained so far."""
        return self._summary.line()

    def close(self) -> None:
        """End what runs in the background, and print the summary; done at exit by itself."""
        atexit.unregister(self.close)
        try:
            self._reporter.close()
            self._take_reports(lag=0)
        finally:
            if self._recorder is not None:
                self._recorder.close(self.iteration)
                self._recorder = None
        if self._prints:
            self._prints = False
            print(self._summary.line(), file=sys.stderr)

    def begin(self) -> Iteration:
        """Begin an iteration: learn from the last one and plan this one."""
        # Before anything else: what a slow worker needs for this is part of what it takes.
        self._timer.start()
        last = self._now
        kept = self._nothing if last.is_done else last.share if last.is_accumulated else last.kept
        self._accumulation.forget()
        start = time.perf_counter() - self._begun
        self._take_reports()
        self._now = Iteration(self.iteration, self._core.plan, start, kept, self._nothing)
        return self._now

    def has_batch(self, sizes: Ints, place: tuple[int, ...]) -> None:
        """Take note of the batches of this iteration, and of where in the data they are."""
        self._now.batch, self._now.place = Share(sizes, self.worker), place
        self._exchange.share = self._now.share
        self._timer.batch(self._now.batch.samples)

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

    def _on_accumulated(self) -> None:
        """Keep what was done for a later exchange: a backward pass under no_sync has ended."""
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
        row = self._reporter.row(digest(now.plan, now.place))
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
            check_digests(rows, done.plan, done.place)
            self._learn(read_rows(rows, done.iteration + 1), done)

    def _learn(self, reports: Reports, done: Exchanged) -> None:
        self._summary.observe(reports, done.plan)
        if self._recorder is not None:
            self._recorder.record(reports, done.plan, done.sizes, done.iteration, done.start)
        if reports.speeds is not None or not self._core.policy.uses_speeds:
            self._core.decide(reports)

    def _make_recorder(
        self, log: str | None, mode: str, predictor: str | None, source: str
    ) -> Recorder | None:
        if log is None or self.worker != 0:
            return None
        return Recorder(log, self._core, mode, predictor or "none", source)
