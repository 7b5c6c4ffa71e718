"""What every policy promises, alone and within every wrapper: one suite over all of them."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenstep.core import Decision, Ints, Limits, View, even_sizes, from_arrays, to_arrays
from evenstep.errors import InfeasibleLimits, InvalidSetting
from evenstep.policies import POLICIES, WRAPPERS, Policy
from tests.policies.examples import freeze, view_of

WRAPPER_SETTINGS: dict[str, dict[str, Any]] = {
    "limited": {"minimum": 2, "granularity": 4},
    "every_n": {"n": 3},
    "dead_band": {"threshold": 0.1},
    "observe_only": {},
    "whole_granules": {"granularity": 4},
}
IN_ORDER = {"even", "static"}
"""These go by the order of the workers; to the others a worker is what it does."""


def cases(names):
    pairs = product(names, (None, *WRAPPERS))
    return pytest.mark.parametrize(
        ("name", "wrapper"), [pytest.param(n, w, id=f"{n}+{w}" if w else n) for n, w in pairs]
    )


over_policies = cases(POLICIES)
few = settings(max_examples=8)
seeds = st.integers(0, 2**32)


def make(name: str, wrapper: str | None, num_workers: int) -> Policy[Any]:
    shares = {"shares": tuple(1.0 + i for i in range(num_workers))}
    policy = POLICIES[name](**shares if name == "static" else {})
    return policy if wrapper is None else WRAPPERS[wrapper](policy, **WRAPPER_SETTINGS[wrapper])


class Job:
    """Workers that take random times, and now and then have nothing to report."""

    def __init__(
        self, name: str, wrapper: str | None, num_workers: int, seed: int, wild: bool = False
    ) -> None:
        self.policy = make(name, wrapper, num_workers)
        self.narrowed = wrapper == "limited"
        self.rng = np.random.default_rng(seed)
        self.wild = wild
        self.total = 16 * num_workers
        self.limits = Limits.of(num_workers)
        self.current = even_sizes(self.total, self.limits)
        self.overhead = self.rng.uniform(0, 1, num_workers)
        self.per_sample = np.exp(self.rng.uniform(-5, 0, num_workers))
        self.state = self.policy.init(num_workers)
        self.iteration = 0

    @property
    def num_workers(self) -> int:
        return len(self.current)

    def promised(self) -> Limits:
        """Return the limits that plans must satisfy, with those of the wrapper."""
        narrow = WRAPPER_SETTINGS["limited"]
        return self.limits.tighten(**narrow) if self.narrowed else self.limits

    def view(self) -> View:
        """Return what is seen at the next boundary: nothing at the first one."""
        n = self.num_workers
        if self.wild:
            times = 10.0 ** self.rng.uniform(-6, 6, n)
            device_memory = self.rng.random(n)
        else:
            noise = np.exp(0.1 * self.rng.standard_normal(n))
            times = (self.overhead + self.per_sample * self.current) * noise
            device_memory = np.minimum(1.0, 0.2 + self.current / 100)
        silent = (self.current == 0) | (self.rng.random(n) < 0.1) | (self.iteration == 0)
        return view_of(
            self.current,
            np.where(silent, np.nan, times),
            iteration=self.iteration,
            speeds=self.current.clip(1) / times if self.policy.uses_speeds else None,
            device_memory=np.where(silent, np.nan, device_memory),
            limits=self.limits,
        )

    def advance(self) -> Decision:
        return self.decide(self.view())

    def decide(self, view: View) -> Decision:
        """Let the policy decide, and carry it out."""
        decision, self.state = self.policy.plan(view, self.state)
        self.current, self.iteration = decision.sizes, self.iteration + 1
        return decision

    def run(self, iterations: int) -> None:
        for _ in range(iterations):
            self.advance()


def assert_kept(decision: Decision, job: Job) -> None:
    """Check the total and the limits, and that whatever else is said can be true."""
    sizes, limits = decision.sizes, job.promised()
    lo, hi = limits.bounds(job.total)
    assert sizes.dtype == np.int64
    assert int(sizes.sum()) == job.total
    assert np.all((lo <= sizes) & (sizes <= hi) & (sizes % limits.granularity == 0)), sizes
    for told in (decision.predicted_times, decision.proposed):
        assert told is None or told.shape == sizes.shape
    for advice in decision.advice:
        assert 0 <= advice.worker < len(sizes)
        assert advice.predicted_time is None or 0 < advice.predicted_time < np.inf


def contents(record: Any) -> Any:
    """Return everything in a record, to the last bit, for comparison."""
    if isinstance(record, np.ndarray):
        return record.dtype.str, record.shape, record.tobytes()
    if is_dataclass(record):
        return {field.name: contents(getattr(record, field.name)) for field in fields(record)}
    return record


@st.composite
def limits_for(draw, job):
    """Draw limits for a job that at least one plan satisfies, in whole granules of 4 too."""
    n, units = job.num_workers, job.total // 4
    cuts = sorted(draw(st.sets(st.integers(1, units - 1), min_size=n - 1, max_size=n - 1)))
    sizes = 4 * np.diff([0, *cuts, units])
    slack = draw(st.lists(st.integers(0, 20), min_size=2 * n, max_size=2 * n))
    granularity = draw(st.sampled_from([1, 2, 4]))
    return Limits(np.maximum(sizes - slack[:n], 0), sizes + slack[n:], granularity)


@over_policies
@few
@given(n=st.integers(1, 6), seed=seeds, wild=st.booleans())
def test_plans_keep_the_total(name, wrapper, n, seed, wild):
    job = Job(name, wrapper, n, seed, wild)
    for _ in range(30):
        assert_kept(job.advance(), job)


@over_policies
@few
@given(data=st.data(), n=st.integers(1, 6), seed=seeds)
def test_plans_keep_to_limits_that_change_while_the_job_runs(name, wrapper, data, n, seed):
    job = Job(name, wrapper, n, seed)
    job.run(10)
    for _ in range(2):
        job.limits = data.draw(limits_for(job))
        for _ in range(10):
            assert_kept(job.advance(), job)


@over_policies
def test_limits_without_any_plan_are_an_error(name, wrapper):
    job = Job(name, wrapper, 4, seed=0)
    job.run(5)
    job.limits = Limits.of(4, cap=12)
    state, current = job.state, job.current
    with pytest.raises(InfeasibleLimits, match="add up to 48, less than the total 64"):
        job.advance()
    assert job.state is state
    assert job.current is current


@over_policies
def test_neither_view_nor_state_is_changed(name, wrapper):
    job = Job(name, wrapper, 5, seed=1)
    for k in range(60):
        job.limits = Limits.of(5, minimum=k // 20, cap=64 if k < 30 else 20)
        view, state = freeze(job.view()), freeze(job.state)
        before = contents(view), contents(state)
        job.decide(view)
        assert (contents(view), contents(state)) == before


@over_policies
def test_the_same_input_gives_the_same_decision(name, wrapper):
    job = Job(name, wrapper, 5, seed=2)
    for _ in range(40):
        view, state = job.view(), job.state
        again = make(name, wrapper, 5).plan(view, state)
        decision = job.decide(view)
        assert contents(again[0]) == contents(decision)
        assert contents(again[1]) == contents(job.state)


@over_policies
def test_the_first_boundary_needs_no_observation(name, wrapper):
    job = Job(name, wrapper, 3, seed=3)
    view = job.view()
    assert not view.observed.any()
    assert_kept(job.decide(view), job)


@over_policies
@pytest.mark.parametrize("heard", [[], [0], [2], [0, 1]])
def test_silent_workers_do_not_stop_the_others(name, wrapper, heard):
    job = Job(name, wrapper, 3, seed=4)
    for k in range(20):
        view = job.view()
        silent = ~np.isin(np.arange(3), heard) & (k != 10)
        reports = replace(
            view.reports,
            batch_sizes=np.where(silent, 0, view.reports.batch_sizes),
            times=np.where(silent, np.nan, view.reports.times),
            device_memory=np.where(silent, np.nan, view.reports.device_memory),
        )
        assert_kept(job.decide(replace(view, reports=reports)), job)


@over_policies
def test_benched_workers_do_not_stop_the_others(name, wrapper):
    job = Job(name, wrapper, 4, seed=5)
    job.limits = Limits.of(4, minimum=0)
    job.current = np.array([0, 40, 0, 24])
    for _ in range(10):
        assert_kept(job.advance(), job)


@over_policies
def test_one_worker_has_it_all(name, wrapper):
    job = Job(name, wrapper, 1, seed=6)
    for _ in range(30):
        assert job.advance().sizes.tolist() == [16]


@over_policies
@pytest.mark.parametrize("keep", [[2, 0, 1], [-1, 2, 0], [0, 1, 2, -1], [2], [-1, -1], [1, -1, -1]])
def test_others_can_join_and_leave(name, wrapper, keep):
    job = Job(name, wrapper, 3, seed=7)
    job.run(8)
    members = np.array(keep)
    if name == "static" and len(keep) != 3:
        with pytest.raises(InvalidSetting, match=f"one per worker \\({len(keep)}\\), got 3"):
            job.policy.remap(job.state, members)
        return
    before = contents(freeze(job.state))
    after = Job(name, wrapper, len(keep), seed=8)
    after.policy = job.policy
    after.state = job.policy.remap(job.state, members)
    after.iteration = job.iteration
    assert contents(job.state) == before
    for _ in range(12):
        assert_kept(after.advance(), after)


@over_policies
def test_when_everybody_is_new_nothing_is_remembered_of_the_old(name, wrapper):
    job = Job(name, wrapper, 4, seed=9)
    job.run(8)
    new = to_arrays(job.policy.remap(job.state, np.full(4, -1)))
    fresh = to_arrays(job.policy.init(4))
    assert list(new) == list(fresh)
    for array, other in zip(new.values(), fresh.values(), strict=True):
        if array.ndim:
            np.testing.assert_array_equal(array, other)


@cases([name for name in POLICIES if name not in IN_ORDER])
@few
@given(order=st.permutations(range(5)), seed=seeds)
def test_it_does_not_matter_in_which_order_the_workers_come(name, wrapper, order, seed):
    job = Job(name, wrapper, 5, seed)
    job.run(15)
    view, state, keep = job.view(), job.state, np.array(order)
    decision, _ = job.policy.plan(view, state)
    reordered, _ = job.policy.plan(in_order(view, keep), job.policy.remap(state, keep))
    assert reordered.sizes.tolist() == decision.sizes[keep].tolist()
    assert [order[a.worker] for a in reordered.advice] == [a.worker for a in decision.advice]


def in_order(view: View, keep: Ints) -> View:
    reports = view.reports
    arrays = ("batch_sizes", "times", "cpu", "memory", "device_memory")
    return View(
        replace(reports, **{name: getattr(reports, name)[keep] for name in arrays}),
        view.current[keep],
        view.speeds[keep],
        view.limits.select(keep),
    )


@over_policies
def test_a_state_comes_back_from_arrays(name, wrapper):
    job = Job(name, wrapper, 4, seed=10)
    for _ in range(40):
        arrays = to_arrays(job.state)
        back = from_arrays(job.policy.init(4), arrays)
        view = job.view()
        decision, state = job.policy.plan(view, back)
        assert contents(job.decide(view)) == contents(decision)
        assert contents(job.state) == contents(state)
