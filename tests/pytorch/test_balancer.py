"""The balancer of a DDP model: modes, limits, agreement, errors, the run log, the end."""

from __future__ import annotations

import io
import re
import threading
from contextlib import nullcontext, redirect_stderr
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, RandomSampler

from evenstep import runlog
from evenstep.core import Decision
from evenstep.errors import DivergedPlans
from evenstep.measure.timer import HostTimer
from evenstep.pytorch import Balancer
from evenstep.training.local_planning import LocalPlanning
from tests.pytorch.setup import (
    Indices,
    balanced,
    cycle,
    data,
    exchange,
    model_of,
    net,
    note_reports,
    visited,
)

pytestmark = pytest.mark.distributed


class Emulated(HostTimer):
    """A timer that says what a device of some speed would have taken."""

    def __init__(self, speed: float) -> None:
        super().__init__(self._now)
        self._speed = speed
        self._at = 0.0

    def _now(self) -> float:
        return self._at

    def batch(self, batch_size: float) -> None:
        super().batch(batch_size)
        self._at += batch_size / self._speed


def run_epoch(speeds, total=60, num_samples=1500, summary=False, **settings):
    """Train an epoch on devices of these speeds; return sizes, summary, and what was printed."""
    printed = io.StringIO()
    with redirect_stderr(printed):
        timer = Emulated(speeds[dist.get_rank()])
        with balanced(total, timer=timer, summary=summary, **settings) as balancer:
            visited(balancer, balancer.loader(Indices(num_samples)))
            line, minimum = balancer.summary(), balancer.minimum
    return balancer.newest_plan.sizes.tolist(), line, printed.getvalue(), minimum


def test_sizes_follow_the_speeds_and_the_summary_says_so(workers):
    first, second = workers.run(run_epoch, speeds=[100.0, 300.0, 200.0], count=3, summary=True)[:2]
    sizes, line, printed, _ = first
    assert sizes == [10, 30, 20]
    assert line.startswith("evenstep: batch sizes 10/30/20; an iteration took 100 ms, ")
    [(gain, low, high)] = re.findall(r"([\d.]+) \(([\d.]+) to ([\d.]+)\) times faster", line)
    assert float(low) < 2 < float(high) and float(gain) == pytest.approx(2, rel=0.1)
    # At the end one more iteration is known.
    assert printed.startswith(line[: line.index("(means")]) and printed.count("\n") == 1
    assert second[0] == sizes
    assert second[2] == ""


def summed_up(pieces):
    """Accumulate on devices of which one is three times as fast; return the summary."""
    speed = [100.0, 300.0][dist.get_rank()]
    with balanced(40, mode="observe", timer=Emulated(speed)) as balancer:
        for i, _ in enumerate(balancer.loader(Indices(40 * 30)), start=1):
            with nullcontext() if i % pieces == 0 else model_of(balancer).no_sync():
                exchange(balancer)
        return balancer.summary()


@pytest.mark.parametrize("pieces", [1, 2])
def test_summary_is_of_all_batches_that_were_accumulated(workers, pieces):
    for line in workers.run(summed_up, pieces=pieces):
        assert "batch sizes 10/30; the best sizes could save " in line
        [(low, high)] = re.findall(r"could save [\d.]+% \(([\d.]+)% to ([\d.]+)%\)", line)
        assert float(low) < 50 < float(high)


@pytest.mark.parametrize("policy", ["proportional", "equal_finish", "stepwise:step=2"])
def test_policies_go_by_name(workers, policy):
    for sizes, *_ in workers.run(
        run_epoch, speeds=[100.0, 300.0], policy=policy, predictor="ema", num_samples=3000
    ):
        assert sizes[0] == pytest.approx(15, abs=2)


def chosen_by_default():
    with balanced(60) as balancer:
        return type(balancer._loop.policy).__name__


def test_default_policy_is_that_of_the_device(workers):
    assert workers.run(chosen_by_default) == ["Cautious"] * 2


def test_static_shares_are_kept(workers):
    for sizes, *_ in workers.run(run_epoch, speeds=[9.0, 1.0], mode="static", shares=[1, 4]):
        assert sizes == [12, 48]


def test_observing_changes_nothing_and_says_what_might_be_gained(workers):
    for sizes, line, *_ in workers.run(run_epoch, speeds=[100.0, 300.0], mode="observe"):
        assert sizes == [30, 30]
        assert "batch sizes 15/45; the best sizes could save " in line
        # With one size seen, nearly all of a time may be overhead.
        [(low, high)] = re.findall(r"could save [\d.]+% \(([\d.]+)% to ([\d.]+)%\)", line)
        assert float(low) < 45 and 50 < float(high) < 80


def test_off_is_plain_bsp(workers):
    run = {"speeds": [100.0, 300.0], "mode": "off", "policy": "stepwise"}
    for sizes, line, *_ in workers.run(run_epoch, **run):
        assert sizes == [30, 30]
        # Emulated times: 300 ms on worker 0, and 100 ms on worker 1.
        assert "300 ms" in line
        assert [part for part in line.split() if "%" in part] == ["33.3%"]


def test_sizes_keep_to_maximum_minimum_and_granularity(workers):
    def sizes(**settings):
        return workers.run(run_epoch, speeds=[100.0, 500.0], **settings)[0][0]

    assert sizes() == [10, 50]
    assert sizes(maximum=40) == [20, 40]
    assert sizes(minimum=16) == [16, 44]
    assert sizes(granularity=4, policy="proportional") == [8, 52]


def smallest(batch_norm):
    with balanced(8, net(batch_norm=batch_norm), policy="proportional", warm_up=0,
                  timer=Emulated([1.0, 1000.0][dist.get_rank()])) as balancer:  # fmt: skip
        model = model_of(balancer)
        sizes = []
        for samples, _ in balancer.loader(data(8 * 10 + 3)):
            sizes.append(len(samples))
            model(samples).sum().backward()
        return balancer.minimum, min(sizes), sizes[-2]


def test_batch_norm_makes_the_minimum_two_also_in_a_tail_that_one_worker_has_alone(workers):
    assert workers.run(smallest, batch_norm=True)[0] == (2, 2, 2)
    assert workers.run(smallest, batch_norm=False)[0] == (1, 1, 1)


def benched():
    with balanced(8, net(batch_norm=True), policy=cycle((8, 0)), minimum=0) as balancer:
        model = model_of(balancer)
        sizes = []
        for samples, _ in balancer.loader(data(8 * 2)):
            sizes.append(len(samples))
            model(samples).sum().backward()
        return sizes, balancer._loop.share.samples


def test_benched_worker_borrows_as_many_samples_as_batch_norm_needs(workers):
    assert workers.run(benched) == [([8, 8], 8), ([2, 2], 0)]


def behind(num_iterations):
    """Stand in for a device that runs ahead: plans hold one iteration later."""
    table = [(1, 11), (2, 10), (3, 9), (4, 8), (5, 7)]
    with balanced(12, policy=cycle(*table)) as balancer:
        boundary = balancer._loop._boundary
        assert isinstance(boundary, LocalPlanning)
        balancer._loop._lag = boundary.planner.delay = 1
        noted = note_reports(balancer)
        sizes = [len(batch[0]) for batch in _exchanged(balancer, num_iterations)]
        at = [done.iteration for _, done in noted]
    return sizes, at, len(noted)


def _exchanged(balancer, num_iterations):
    for batch in balancer.loader(Indices(12 * num_iterations)):
        yield batch
        exchange(balancer)


def test_plans_hold_one_iteration_later_where_the_device_runs_ahead(workers):
    (sizes, at, at_the_end), _ = workers.run(behind, num_iterations=5)
    assert sizes == [1, 1, 2, 3, 4]
    assert at == [0, 1, 2]
    # Closing waits for what is still on its way.
    assert at_the_end == 5


def in_a_group():
    """Train in workers 1 and 2 of three, with a sampler."""
    group = dist.new_group([1, 2])
    if dist.get_rank() == 0:
        return None
    model = DistributedDataParallel(net(), process_group=group)
    balancer = Balancer(model, 12, policy=cycle((2, 10), (9, 3)), summary=False, loss="mean")
    loader = balancer.loader(Indices(36), sampler=RandomSampler(range(36)))
    batches = visited(balancer, loader)
    balancer.close()
    return balancer.worker, batches, balancer.mean(balancer.worker)


def test_balancer_works_in_a_group_of_some_workers(workers):
    _, (first, some, mean), (second, others, same) = workers.run(in_a_group, count=3)
    assert (first, second) == (0, 1)
    assert sorted(i for batch in some + others for i in batch) == list(range(36))
    assert [len(batch) for batch in some] == [2, 9, 2]
    assert mean == same == pytest.approx(10 / 12)


def buffers():
    """Return running means: of each worker alone, as averaged at the end, and weighted by hand."""
    with balanced(8, net(batch_norm=True), policy=cycle((2, 6))) as balancer:
        model = model_of(balancer)
        loader = balancer.loader(data(8 * 3))
        own = torch.zeros(1)
        for samples, _ in loader:
            model(samples).sum().backward()
            own = model.module[1].running_mean.clone()
        return own, model.module[1].running_mean


def test_running_statistics_are_averaged_by_size_at_the_end_of_an_epoch(workers):
    (first, averaged), (second, same) = workers.run(buffers)
    assert not torch.allclose(first, second)
    torch.testing.assert_close(averaged, first * 0.25 + second * 0.75)
    assert torch.equal(averaged, same)


class Rogue:
    """A policy that comes to another decision on worker 1."""

    uses_speeds = False

    def init(self, num_workers):
        pass

    def plan(self, view, state):
        differs = dist.get_rank() == 1 and view.reports.iteration == 3
        return Decision(np.array([5, 7] if differs else [6, 6])), None

    def remap(self, state, keep):
        pass


def diverge(how):
    with balanced(12, policy=Rogue() if how == "plan" else "even") as balancer:
        loader = balancer.loader(Indices(12 * 6))
        if how == "epoch" and balancer.worker == 1:
            loader.set_epoch(4)
        seen = []
        try:
            for indices, _ in loader:
                seen.append(len(indices))
                exchange(balancer)
        except DivergedPlans as error:
            return len(seen), str(error)
    return len(seen), ""


def test_workers_with_different_plans_stop(workers):
    (first, message), (second, other) = workers.run(diverge, how="plan")
    # Iteration 3 is the one that went wrong, and the last.
    assert (first, second) == (4, 4)
    assert "worker 1 used another than plan 0 with sizes [6, 6]" in message
    assert "worker 0 used another than plan 1 with sizes [5, 7]" in other


def test_workers_in_different_epochs_stop(workers):
    for seen, message in workers.run(diverge, how="epoch"):
        assert seen == 1
        assert "or other samples; do all workers go through the same epochs" in message


class Endless:
    def __getitem__(self, i):
        return i


def mistake(which):
    """Make a mistake that must be found before the first iteration."""
    worker = dist.get_rank()
    if which == "not wrapped":
        iter(Balancer(net(), 8).loader(data(16)))
    if which == "no process group":
        dist.destroy_process_group()
        try:
            iter(Balancer(net(), 8).loader(data(16)))
        finally:
            dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    model = DistributedDataParallel(net())
    if which == "hooked before":
        model.register_comm_hook(None, default_hooks.allreduce_hook)
    arguments: dict[str, tuple[Any, dict[str, Any]]] = {
        "total": (1, {}),
        "total of one": (8 + worker, {}),
        "mode of one": (8, {"mode": ["balanced", "balance"][worker]}),
        "mode": (8, {"mode": "balance"}),
        "granularity of one": (8, {"granularity": 1 + worker}),
        "policy of one": (8, {"policy": cycle((4, 4)) if worker else cycle((5, 3))}),
        "shares": (8, {"mode": "static", "shares": [1, 2, 3]}),
        "no shares": (8, {"mode": "static"}),
        "not whole": (8.5, {}),
        "maximum": (8, {"maximum": 3}),
        "hook": (8, {"comm_hook": default_hooks.allreduce_hook}),
        "policy": (8, {"policy": "fastest"}),
        "predictor": (8, {"predictor": "crystal_ball"}),
        "unknown": (8, {"polcy": "even"}),
    }
    total, settings = arguments.get(which, (8, {}))
    balancer = Balancer(model, total, summary=False, **settings)
    try:
        if which == "two balancers":
            Balancer(model, 8)
        sets: dict[str, Any] = {
            "loader": DataLoader(Indices(20)),
            "neither": object(),
            "endless": Endless(),
            "lengths": Indices(20 + worker),
        }
        loading: dict[str, dict[str, Any]] = {
            "seed of one": {"seed": worker},
            "nothing to do": {"drop_last": True},
            "batch size": {"batch_size": 4},
            "out of order": {"in_order": False, "num_workers": 1},
            "distributed sampler": {"sampler": DistributedSampler(Indices(20))},
            "prefetch": {"prefetch_factor": 2},
            "unknown loading": {"shufle": False},
        }
        samples = Indices(6) if which == "nothing to do" else sets.get(which, Indices(20))
        balancer.loader(samples, **loading.get(which, {}))
    finally:
        balancer.close()


MISTAKES = {
    "total": "total must be at least 1 for each of 2 workers, got 1",
    "total of one": "total must be the same on all workers, got 8 on worker 0 and 9 on worker 1",
    "mode": "mode must be one of balanced, static, observe, off, got 'balance'",
    "mode of one": "mode must be the same on all workers, got 'balanced' on worker 0 and 'balance'",
    "granularity of one": "granularity must be the same on all workers, got 1 on worker 0 and 2",
    "policy of one": "policy must be the same on all workers",
    "shares": "static shares must be one per worker (2), got 3",
    "no shares": "shares go with mode 'static', got None",
    "not whole": "total must be an integer, got 8.5",
    "maximum": "add up to 6, less than the total 8",
    "hook": "comm_hook must be (state, hook), got <function allreduce_hook",
    "policy": "policy must be one of even",
    "predictor": "predictor must be one of ",
    "unknown": "summary, timer, warm_up, watchdog, got 'polcy'",
    "not wrapped": "or the strategy of a trainer, got Sequential",
    "no process group": "a process group must be there first: start the script with torchrun",
    "two balancers": "a model can have one Balancer, and this one has one already",
    "hooked before": "Balancer(..., comm_hook=(state, hook))",
    "neither": "the dataset must be map-style",
    "loader": "must be the balancer's total, 8, divided by the number of workers, 2, got 1",
    "endless": "the dataset must have a length, so that an epoch has an end, got Endless",
    "lengths": "dataset length must be the same on all workers, got 20 on worker 0 and 21",
    "seed of one": "seed must be the same on all workers, got 0 on worker 0 and 1 on worker 1",
    "nothing to do": "an epoch must have at least one iteration, got 6 samples",
    "batch size": "batch_size must be left out, as batch sizes are planned",
    "out of order": "in_order must be True",
    "distributed sampler": "the sampler must order the whole data set",
    "prefetch": "prefetch_factor option could only be specified in multiprocessing",
    "unknown loading": "unexpected keyword argument 'shufle'",
}


@pytest.mark.parametrize("which", MISTAKES)
def test_mistake_is_found_before_the_first_iteration_on_all_workers(workers, which):
    for failure in workers.failures(mistake, which=which):
        assert MISTAKES[which] in failure.message
        ours = ("InvalidSetting", "InfeasibleLimits")
        assert failure.kind in ours or which in ("prefetch", "unknown loading")


def logged(path, mode):
    speed = [100.0, 300.0][dist.get_rank()]
    with balanced(
        40, net(), mode=mode, policy="proportional", predictor="memoryless", log=path,
        timer=Emulated(speed), warm_up=1,
    ) as balancer:  # fmt: skip
        noted = note_reports(balancer)
        visited(balancer, balancer.loader(Indices(40 * 6 + 4)))
    return [(reports.cpu, reports.speeds) for reports, _ in noted]


def test_run_log_says_what_happened(workers, tmp_path):
    path = tmp_path / "run.jsonl"
    (reported, _) = workers.run(logged, path=str(path), mode="balanced")
    log = runlog.read(path)
    assert log.complete
    assert log.ended
    assert log.header.source == "measured"
    assert log.header.total == 40
    assert [name.split("/")[1] for name in log.header.workers] == ["cpu", "cpu#1"]
    # Nothing is learned while warming up, nor before the usage at the start is known; the tail
    # of 4 samples is there, too.
    assert log.iterations.tolist() == list(range(7))
    assert log.matrix("batch_sizes").tolist() == [
        [20, 20], [20, 20], *[[10, 30]] * 4, [1, 3],
    ]  # fmt: skip
    times = log.matrix("times")
    assert np.isnan(times[0]).all()
    np.testing.assert_allclose(times[1], [0.2, 20 / 300], rtol=1e-6)
    np.testing.assert_allclose(times[2:6], 0.1, rtol=1e-6)
    np.testing.assert_allclose(log.matrix("waiting")[1], [0, 0.2 - 20 / 300], atol=1e-6)
    # The usage at the start of k, and the speed predicted for k, came with the reports before.
    cpu, speeds = log.matrix("cpu"), log.matrix("predicted_speeds")
    assert np.isnan(cpu[0]).all()
    for k in range(1, 7):
        np.testing.assert_allclose(cpu[k], reported[k - 1][0], atol=1e-4)
    assert np.isnan(speeds[:2]).all()
    np.testing.assert_allclose(speeds[2:], np.tile([100, 300], (5, 1)), rtol=1e-5)
    plans = [event.batch_sizes for event in log.events_of("plan")]
    assert [list(sizes or []) for sizes in plans] == [[20, 20], [10, 30]]


def test_run_log_of_an_observed_run_has_the_proposals(workers, tmp_path):
    path = tmp_path / "run.jsonl"
    workers.run(logged, path=str(path), mode="observe")
    log = runlog.read(path)
    assert set(map(tuple, log.matrix("batch_sizes")[:6].tolist())) == {(20, 20)}
    assert [list(event.batch_sizes or []) for event in log.events_of("proposal")] == [[10, 30]]


def checkpoint():
    """Return sizes right after a restart, and after it has learned again."""

    def learn(state, num_samples):
        with balanced(60, timer=Emulated([100.0, 300.0][dist.get_rank()])) as balancer:
            if state is not None:
                balancer.load_state_dict(state)
            first = balancer.plan.sizes.tolist()
            visited(balancer, balancer.loader(Indices(num_samples)))
            return first, balancer.iteration, balancer.state_dict()

    _, _, state = learn(None, 600)
    # As if worker 0 had saved it and all workers had loaded that.
    everywhere = [state]
    dist.broadcast_object_list(everywhere, src=0)
    buffer = io.BytesIO()
    torch.save(everywhere[0], buffer)
    buffer.seek(0)
    first, iteration, after = learn(torch.load(buffer), 120)
    return first, iteration, after["balancer"]["own.sizes"]


def test_state_of_the_balancer_survives_a_restart(workers):
    for first, iteration, after in workers.run(checkpoint):
        assert first == [15, 45]
        assert iteration == 12
        assert after == [15, 45]


def foreign_checkpoint():
    with balanced(60) as balancer:
        state = balancer.state_dict()
    with balanced(80) as balancer:
        balancer.load_state_dict(state)


def test_checkpoint_of_another_total_is_refused(workers):
    for failure in workers.failures(foreign_checkpoint):
        assert failure.kind == "StateFileError"
        assert "total must be that of the checkpoint, 60, got 80" in failure.message


def threads_after_closing():
    def ours():
        return sorted(t.name for t in threading.enumerate() if t.name.startswith("evenstep"))

    with balanced(12) as balancer:
        visited(balancer, balancer.loader(Indices(36), num_workers=1))
        during = ours()
    balancer.close()
    return during, ours()


def test_no_thread_is_left_after_closing(workers):
    for during, after in workers.run(threads_after_closing):
        assert during == ["evenstep-usage"]
        assert after == []


def still():
    with balanced(12, mode="off") as balancer:
        visited(balancer, balancer.loader(Indices(36)))
        return [t.name for t in threading.enumerate() if t.name.startswith("evenstep")]


def test_nothing_runs_in_the_background_where_nobody_needs_it(workers):
    assert workers.run(still) == [[], []]


def test_a_balancer_that_waits_for_its_model_can_be_shown():
    balancer = Balancer(total=8)
    assert repr(balancer) == "Balancer(not bound to a model yet)"
    assert balancer._repr_html_() == "<p>Balancer(not bound to a model yet)</p>"
