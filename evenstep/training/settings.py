"""The settings of a balancer: options, their checks, and the policy and predictor they name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, TypedDict

from evenstep.core import LARGEST_TOTAL, require_whole
from evenstep.core.coordinator import JobCoordinator
from evenstep.core.planner import Planner
from evenstep.errors import InvalidSetting
from evenstep.measure.timer import Timer
from evenstep.policies import (
    Even,
    ObserveOnly,
    Policy,
    Static,
    WholeGranules,
    default_policy,
    make_policy,
)
from evenstep.predictors import DEFAULT_PREDICTOR, Predictor, make_predictor
from evenstep.training.recorder import Log

MODES = ("balanced", "static", "observe", "off")


class SizeOptions(TypedDict, total=False):
    """Options of all balancers; the only ones of a `ShardedBalancer`, which measures no times."""

    shares: Sequence[float] | None
    """Fixed proportions of the batch sizes, one per worker."""
    minimum: int | None
    """The smallest batch size of a worker."""
    maximum: int | Sequence[int] | None
    """The largest batch size: one for all workers, or one for each (not for sharded models)."""
    summary: bool
    """Whether worker 0 prints a line at the end on the time that balancing has saved."""


class LoopOptions(SizeOptions, total=False):
    """Options of the balancers that measure batch processing times; all that JAX takes."""

    mode: str
    """`balanced`, `static` (with `shares`), `observe` or `off`."""
    policy: str | Policy[Any] | None
    """The short form of a policy, as for `evenstep simulate`, or a policy object."""
    predictor: str | None
    """The short form of a speed predictor; by default, the policy decides whether to use one."""
    coordinator: JobCoordinator | None
    """The client of a manager, as `evenstep.connect` returns it; the manager makes the plans."""
    log: Log | None
    """The run log that worker 0 writes, or a list of run logs and loggers."""
    name: str | None
    """The name of this worker in logs and checkpoints; by default, its host and device."""
    warm_up: int
    """Iterations at the start whose times are not reported."""
    timer: Timer | None
    """Measures batch processing times; by default, the timer for the device."""
    source: str
    """The source of times that the run log names: `measured` or `emulated`."""
    watchdog: float | None
    """End the job, with the stacks of all workers, if an iteration takes that many times the usual
    one, and at least a minute; only for DDP."""


class Options(LoopOptions, total=False):
    """Options of the balancers for DDP, TensorFlow and MXNet, whose batches may have any size."""

    granularity: int | None
    """Batch sizes are multiples of this."""


def check_names(options: Mapping[str, Any], known: Iterable[str]) -> None:
    """Raise InvalidSetting for an option with an unknown name.

    >>> check_names({"polcy": "even"}, ["policy", "mode"])
    Traceback (most recent call last):
    evenstep.errors.InvalidSetting: settings of a balancer must be arguments of its own or among
    mode, policy, got 'polcy'
    """
    unknown = next((name for name in options if name not in known), None)
    if unknown is not None:
        raise InvalidSetting(
            "settings of a balancer must be arguments of its own or among "
            f"{', '.join(sorted(known))}, got {unknown!r}"
        )


@dataclass(frozen=True)
class Settings:
    """The settings of sizes and plans, which must be the same on all workers."""

    total: int
    mode: str
    shares: Sequence[float] | None
    policy: str | Policy[Any] | None
    predictor: str | None
    minimum: int
    maximum: int | Sequence[int] | None
    micro_batches: bool
    granularity: int
    straggler: str
    warm_up: int
    watchdog: float | None = None

    def agreed(self) -> dict[str, Any]:
        """Return the settings in a form that can be compared between processes."""
        return {f.name: _comparable(getattr(self, f.name)) for f in fields(self)}

    def make_policy(self, device: str) -> Policy[Any]:
        """Return the policy; benching takes one that tries a benched worker again."""
        policy = self.policy
        if self.straggler == "bench":
            self._check_bench()
            policy = policy or "equal_finish"
        chosen = choose_policy(self.mode, policy, self.shares, device)
        return WholeGranules(chosen, self.granularity) if self._has_remainder else chosen

    @property
    def _has_remainder(self) -> bool:
        """Whether one batch is not a multiple of the granularity, as the total is not."""
        return self.granularity > 1 and self.total % self.granularity != 0

    def check_retries(self, min_trainable: int) -> None:
        """Raise InvalidSetting if a benched worker would be tried again with too few samples."""
        is_ours = self.policy is None or isinstance(self.policy, str)
        if self.minimum == 0 and self.granularity < min_trainable and is_ours:
            raise InvalidSetting(
                f"granularity must be at least {min_trainable} where workers may be benched and "
                f"the model has BatchNorm, as a worker that is tried again gets one granule, "
                f"got {self.granularity}"
            )

    def _check_bench(self) -> None:
        if self.mode != "balanced" or self.minimum > 0:
            raise InvalidSetting(
                "straggler 'bench' takes mode 'balanced' and a minimum of 0, "
                f"got {self.mode!r} and {self.minimum}"
            )
        if isinstance(self.policy, str) and "equal_finish" not in self.policy:
            raise InvalidSetting(
                "straggler 'bench' takes policy equal_finish, which tries a benched worker again, "
                f"got {self.policy!r}"
            )

    def make_planner(self, members: Sequence[str], policy: Policy[Any], delay: int) -> Planner:
        """Return the planner of these members."""
        maxima = maxima_of(self.maximum, len(members))
        caps = None if maxima is None else dict(zip(members, maxima, strict=True))
        return Planner(
            members, self.total, policy, minimum=self.minimum,
            granularity=1 if self._has_remainder else self.granularity,
            delay=delay,
            # With micro-batches, the largest batch limits the pieces, not the plan.
            caps=None if self.micro_batches else caps,
        )  # fmt: skip

    def check_watchdog(self) -> None:
        """Raise InvalidSetting for a watchdog that would end usual iterations."""
        given = self.watchdog
        if given is not None and not (isinstance(given, (int, float)) and given > 1):
            raise InvalidSetting(
                f"watchdog must be a number of usual iterations > 1, or None, got {given!r}"
            )

    def limit_of(self, worker: int, num_workers: int) -> int | None:
        """Return the given largest batch that a worker can run at once, or None."""
        maxima = maxima_of(self.maximum, num_workers)
        return None if maxima is None else maxima[worker]


def _comparable(value: Any) -> Any:
    if value is None or isinstance(value, (str, int, float)):
        return value
    return tuple(value) if isinstance(value, Iterable) else name_of(value)


def choose_sizes(
    minimum: int | None,
    granularity: int | None,
    straggler: str,
    min_trainable: int,
    coordinator: JobCoordinator | None,
) -> tuple[int, int]:
    """Return minimum and granularity: the given ones, those of the job, or of the model."""
    if coordinator is not None:
        default = coordinator.settings.minimum, coordinator.settings.granularity
    else:
        default = 0 if straggler == "bench" else min_trainable, 1
    return (
        default[0] if minimum is None else minimum,
        default[1] if granularity is None else granularity,
    )


def choose_policy(
    mode: str,
    policy: str | Policy[Any] | None,
    shares: Sequence[float] | None,
    device: str,
) -> Policy[Any]:
    """Return the policy of a mode."""
    if mode not in MODES:
        raise InvalidSetting(f"mode must be one of {', '.join(MODES)}, got {mode!r}")
    if (mode == "static") != (shares is not None):
        raise InvalidSetting(f"shares go with mode 'static', got {shares!r} with {mode!r}")
    if shares is not None:
        chosen: Policy[Any] = Static(tuple(float(share) for share in shares))
    elif mode == "off":
        chosen = Even()
    elif policy is None or isinstance(policy, str):
        chosen = make_policy(policy or default_policy(device, reads_usage=True))
    else:
        chosen = policy
    return ObserveOnly(chosen) if mode == "observe" else chosen


def name_of(policy: str | Policy[Any] | None) -> str | None:
    """Return a name of a policy that is the same in all processes."""
    if policy is None or isinstance(policy, str):
        return policy
    return repr(policy) if is_dataclass(policy) else type(policy).__qualname__


def choose_predictor(policy: Policy[Any], predictor: str | None) -> Predictor | None:
    """Return this worker's predictor, if the policy needs one or the user names one."""
    if predictor is None and not policy.uses_speeds:
        return None
    return make_predictor(predictor or DEFAULT_PREDICTOR, num_workers=1)


def check_sizes(total: int, minimum: int, num_workers: int) -> None:
    """Raise InvalidSetting unless every worker can have a batch."""
    require_whole("total", total, most=LARGEST_TOTAL)
    require_whole("minimum", minimum, least=0, most=LARGEST_TOTAL)
    if total < num_workers * max(minimum, 1):
        raise InvalidSetting(
            f"total must be at least {max(minimum, 1)} for each of {num_workers} workers, "
            f"got {total}"
        )


def maxima_of(maximum: int | Sequence[int] | None, num_workers: int) -> list[int] | None:
    """Return the largest batch size of each worker, from one for all or one for each."""
    if maximum is None:
        return None
    maxima = [maximum] * num_workers if isinstance(maximum, int) else list(maximum)
    if len(maxima) != num_workers:
        raise InvalidSetting(f"maximum must be one per worker ({num_workers}), got {len(maxima)}")
    for worker, most in enumerate(maxima):
        require_whole(f"maximum of worker {worker}", most)
    return maxima
