"""The planner turns reports into plans: check, learn, predict, plan, number."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evenstep.core.arrays import Floats, Ints, as_ints
from evenstep.core.limits import UNLIMITED, Limits
from evenstep.core.plan import Decision, Plan
from evenstep.core.policy import Policy, View, even_sizes
from evenstep.core.predictor import Predictor
from evenstep.core.report import Reports
from evenstep.core.rows import Arrays, from_arrays, inner_arrays, remap_rows, to_arrays
from evenstep.core.speed_model import SpeedModel, no_usage
from evenstep.core.split import split_proportional
from evenstep.core.trainer import Trainer
from evenstep.errors import (
    InfeasibleLimits,
    InvalidReport,
    InvalidSetting,
    MembershipError,
    StateFileError,
)


class Planner:
    """Turns the reports of each boundary into the plan of an iteration.

    >>> from evenstep.policies import make_policy
    >>> from evenstep.predictors import make_predictor
    >>> planner = Planner(
    ...     ["a", "b"], 64, make_policy("proportional"), make_predictor("ema", num_workers=2)
    ... )
    >>> planner.plan.sizes
    array([32, 32])
    >>> usage = dict(cpu=np.ones(2), memory=np.ones(2), device_memory=np.full(2, np.nan))
    >>> plan = planner.decide(Reports(0, np.zeros(2, int), np.full(2, np.nan), **usage))
    >>> plan = planner.decide(Reports(1, np.array([32, 32]), np.array([0.1, 0.3]), **usage))
    >>> plan.number, plan.iteration, plan.sizes
    (1, 1, array([48, 16]))
    """

    def __init__(
        self,
        workers: Sequence[str],
        total: int,
        policy: Policy[Any],
        predictor: Predictor | None = None,
        minimum: int = 1,
        granularity: int = 1,
        delay: int = 0,
        trainer: Trainer | None = None,
        caps: Mapping[str, int] | None = None,
    ) -> None:
        if delay < 0:
            raise InvalidSetting(f"delay must be >= 0 iterations, got {delay}")
        if predictor is not None and predictor.num_workers != len(workers):
            raise InvalidSetting(
                f"the predictor must be for {len(workers)} workers, got {predictor.num_workers}"
            )
        self.workers = distinct(workers)
        self.total = total
        self.policy = policy
        self.predictor = predictor
        self.delay = delay
        self._speed_model = None if predictor is None else SpeedModel(predictor, trainer)
        self._minimum = minimum
        self._granularity = granularity
        self._caps = dict(caps or {})
        self.limits = self._limits_of(self.workers)
        self._policy_state = policy.init(len(workers))
        first, _ = policy.plan(
            self._view(self._silence(), even_sizes(total, self.limits)), self._policy_state
        )
        self.plan = Plan(number=0, iteration=0, sizes=first.sizes, reason="start")
        self._least_number = 0

    def decide(self, reports: Reports) -> Plan:
        """Return the newest plan after the reports of the boundary of iteration k.

        It holds from its `iteration` on, which is k, or later with a delay. A plan that keeps
        the sizes keeps its number too. Reports that cannot be true are refused before anything
        is learned from them.
        """
        if reports.num_workers != len(self.workers):
            raise InvalidReport(
                f"reports must come from all {len(self.workers)} workers, got {reports.num_workers}"
            )
        if self.policy.uses_speeds and self.predictor is None and reports.speeds is None:
            raise InvalidSetting(f"policy {self.policy} needs a predictor, or predicted speeds")
        reports.check()
        if self._speed_model is not None:
            speeds = np.where(reports.observed, reports.batch_sizes / reports.times, np.nan)
            self._speed_model.learn(speeds, reports.measured_iterations)
            self._speed_model.begin(reports.iteration, reports.cpu, reports.memory)
        view = self._view(reports, self.plan.sizes)
        decision, self._policy_state = self.policy.plan(view, self._policy_state)
        assert int(decision.sizes.sum()) == self.total, (self.policy, decision)
        self.plan = self._numbered(decision, reports.iteration + self.delay)
        return self.plan

    def close(self) -> None:
        """End a training that may be running in the background."""
        if self._speed_model is not None:
            self._speed_model.close()

    def change_members(self, workers: Sequence[str], iteration: int) -> Plan:
        """Continue with other workers from an iteration on; the total stays.

        Everything learned about the workers that stay is kept. Until the next decision, sizes are
        scaled to make room for newcomers, or to take over from workers that left.
        """
        workers = distinct(workers)
        keep, limits, sizes, policy_state = self._remapped(workers)
        if self._speed_model is not None:
            self._speed_model.remap(keep)
        self.workers, self.limits, self._policy_state = workers, limits, policy_state
        self.plan = Plan(self._next_number(), iteration, sizes, reason="members changed")
        return self.plan

    def change_total(self, total: int, iteration: int, caps: Ints | None = None) -> Plan:
        """Continue with another total from an iteration on, with sizes in the same proportions.

        `caps` are those that workers have reported. Raises InfeasibleLimits, and changes nothing,
        if the limits allow no plan.
        """
        self.limits.bounds(total)
        self.total = total
        wanted = np.maximum(self.plan.sizes, 1e-3)
        sizes = split_proportional(total, wanted, self._limits_within(caps))
        self.plan = Plan(self._next_number(), iteration, sizes, reason="total changed")
        return self.plan

    def renumber(self, number: int, iteration: int) -> Plan:
        """Give the plan in force a new number: workers may hold another plan with its number."""
        number = max(number, self._least_number)
        self.plan = replace(self.plan, number=number, iteration=iteration, reason="renumbered")
        return self.plan

    def number_from(self, least: int) -> None:
        """Give new plans no number below this one: workers may hold plans with such numbers."""
        self._least_number = least

    def check_members(self, workers: Sequence[str]) -> None:
        """Raise as `change_members` would if the job cannot continue with these workers."""
        self._remapped(distinct(workers))

    def state(self) -> Arrays:
        """Return everything learned, and the plan, as arrays to be saved."""
        model = self._speed_model
        usage = no_usage(len(self.workers)) if model is None else model.usage
        own = _Own(usage, self.plan.sizes, self.plan.number, self.plan.iteration)
        parts = {"own": to_arrays(own), "policy": to_arrays(self._policy_state)}
        if self.predictor is not None:
            parts["predictor"] = self.predictor.state()
        return {
            f"{name}.{key}": array for name, part in parts.items() for key, array in part.items()
        }

    def restore(
        self,
        state: Mapping[str, NDArray[Any]],
        workers: Sequence[str] | None = None,
        caps: Ints | None = None,
        total: int | None = None,
    ) -> None:
        """Continue from a saved state of the same policy and predictor, or change nothing.

        It was saved with the `workers` and the `total` given, by default the present ones.
        Everything learned about present workers is restored; sizes are scaled to the present
        members.
        """
        total = self.total if total is None else total
        before = self.workers if workers is None else distinct(workers)
        n = len(before)
        own = from_arrays(
            _Own(no_usage(n), np.zeros(n, dtype=np.int64), 0, 0), inner_arrays(state, "own")
        )
        # Not by numpy, whose sum of large numbers wraps around.
        if min(own.sizes) < 0 or sum(own.sizes.tolist()) != total:
            raise StateFileError(
                f"saved sizes must be >= 0 and add up to {total}, got {own.sizes.tolist()}"
            )
        if own.number < 0 or own.iteration < 0:
            raise StateFileError(
                "the number and the iteration of a saved plan must be >= 0, got "
                f"{own.number} and {own.iteration}"
            )
        policy_state = from_arrays(self.policy.init(n), inner_arrays(state, "policy"))
        keep, sizes = positions(self.workers, before), own.sizes
        self.limits.bounds(total)
        limits = self._limits_within(caps, total)
        if before != self.workers:
            policy_state = self.policy.remap(policy_state, keep)
        if before != self.workers or not limits.allow(sizes, total):
            sizes = scaled(own.sizes, keep, total, limits)
        if self.predictor is not None:
            self._restore_predictor(self.predictor, inner_arrays(state, "predictor"), before)
        if self._speed_model is not None:
            usage = remap_rows(own.usage, no_usage(len(self.workers)), keep)
            self._speed_model.restore_usage(usage)
        self.total, self._policy_state = total, policy_state
        self.plan = Plan(own.number, own.iteration, sizes, reason="restored")

    def _restore_predictor(
        self, predictor: Predictor, state: Arrays, before: Sequence[str]
    ) -> None:
        if tuple(before) == self.workers:
            predictor.restore(state)
            return
        # On a copy first: a state that is refused must change nothing.
        for one in (copy.deepcopy(predictor), predictor):
            one.remap(np.full(len(before), -1))
            one.restore(state)
        predictor.remap(positions(self.workers, before))

    def _view(self, reports: Reports, current: Ints) -> View:
        if self._speed_model is not None:
            speeds = self._speed_model.predict(reports.cpu, reports.memory)
        elif reports.speeds is not None:
            speeds = reports.speeds
        else:
            speeds = np.full(len(current), np.nan)
        return View(reports, current, speeds, self._limits_within(reports.caps))

    def _limits_within(self, caps: Ints | None, total: int | None = None) -> Limits:
        """Return the limits for a total, tightened by the caps that workers report.

        If no plan fits them, workers share the total in proportion to their caps: to continue in
        micro-batches, or at a risk, is better than to stop.
        """
        if caps is None or not np.any(caps < self.limits.cap):
            return self.limits
        total = self.total if total is None else total
        g = self._granularity
        # No worker can have less than the minimum, whatever cap it reports.
        least = np.maximum(-(-self.limits.minimum // g), 1)
        usable = np.minimum(np.maximum(caps // g, least) * g, total)
        share = -(-usable * total // (g * int(usable.sum()))) * g
        for cap in (usable, np.maximum(usable, share)):
            limits = self.limits.tighten(cap=cap)
            if _is_feasible(limits, total):
                return limits
        return self.limits

    def _numbered(self, decision: Decision, iteration: int) -> Plan:
        changed = not np.array_equal(decision.sizes, self.plan.sizes)
        plan = replace(
            self.plan,
            predicted_times=decision.predicted_times,
            advice=decision.advice,
            proposed=decision.proposed,
            phase=decision.phase,
        )
        if not changed:
            return plan
        return replace(
            plan,
            number=self._next_number(),
            iteration=iteration,
            sizes=decision.sizes,
            reason=decision.reason,
        )

    def _next_number(self) -> int:
        return max(self.plan.number + 1, self._least_number)

    def _limits_of(self, workers: Sequence[str]) -> Limits:
        caps = as_ints([self._caps.get(worker, UNLIMITED) for worker in workers])
        return Limits.of(len(workers), self._minimum, caps, self._granularity)

    def _remapped(self, workers: Sequence[str]) -> tuple[Ints, Limits, Ints, Any]:
        """Return old positions, limits, sizes and policy state of other members."""
        keep = positions(workers, self.workers)
        limits = self._limits_of(workers)
        sizes = scaled(self.plan.sizes, keep, self.total, limits)
        return keep, limits, sizes, self.policy.remap(self._policy_state, keep)

    def _silence(self) -> Reports:
        """Return the reports before the first boundary: all workers are alike."""
        silent = Reports.silent(0, len(self.workers))
        return replace(silent, speeds=np.ones(len(self.workers)))


@dataclass(frozen=True, eq=False)
class _Own:
    """The planner's own state, in a form to be saved."""

    usage: Floats
    sizes: Ints
    number: int
    iteration: int


def _is_feasible(limits: Limits, total: int) -> bool:
    try:
        limits.bounds(total)
    except InfeasibleLimits:
        return False
    return True


def distinct(workers: Sequence[str]) -> tuple[str, ...]:
    """Return the workers, or raise if there are none or one is listed twice."""
    if not workers:
        raise InvalidSetting("a job needs at least one worker, got none")
    seen: set[str] = set()
    for worker in workers:
        if worker in seen:
            raise MembershipError(f"worker {worker} must be a member only once")
        seen.add(worker)
    return tuple(workers)


def positions(workers: Sequence[str], before: Sequence[str]) -> Ints:
    """Return the old position of each worker, -1 for a newcomer.

    >>> positions(["b", "c"], before=["a", "b"]).tolist()
    [1, -1]
    """
    old = {worker: i for i, worker in enumerate(before)}
    return as_ints([old.get(worker, -1) for worker in workers])


def scaled(sizes: Ints, keep: Ints, total: int, limits: Limits) -> Ints:
    """Return the sizes of other members, in proportion to the old sizes of those that stay.

    `keep` holds the old position of each; a newcomer counts as a typical worker.
    """
    typical = max(1.0, float(np.median(sizes)))
    wanted = np.where(keep >= 0, sizes[keep], typical)
    return split_proportional(total, np.maximum(wanted, 1e-3), limits)
