"""Advice in words: the sentences before the figures, and the lines of a script to change."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from evenstep.estimates import Estimate, Straggler
from evenstep.estimates.words import (
    LITTLE,
    duration,
    gain_words,
    optimum_words,
    percent,
    percent_range,
    straggler_words,
)
from evenstep.insight.advice.advising import Advice
from evenstep.insight.plots.plot_data import readable

_MEANS = {
    "measured": "From times measured on real workers.",
    "emulated": "From emulated times: real training, on workers that were slowed down on purpose.",
    "simulated": "Simulated: from times computed in virtual time, nothing was measured.",
}


def sentences(advice: Advice) -> list[str]:
    """Return the sentences of the advice, the most important first."""
    return [
        _MEANS[advice.source], *advice.remarks, *_gain(advice), *_waiting(advice),
        *_assumptions(advice), *_keeping(advice), *_totals(advice),
    ]  # fmt: skip


def time_of(advice: Advice, seconds: float) -> str:
    """Return a time with its unit, or as a share of the slowest worker's time."""
    return f"{seconds:.1%}" if advice.relative else duration(seconds)


def lines_to_change(total: int) -> str:
    """Return the three lines of a DistributedDataParallel script that change.

    >>> print(lines_to_change(128).splitlines()[0])
    + from evenstep.pytorch import Balancer
    """
    return "\n".join(
        (
            "+ from evenstep.pytorch import Balancer",
            "  model = DDP(net)",
            "- loader = DataLoader(train, batch_size=..., sampler=DistributedSampler(train))",
            f"+ balancer = Balancer(model, total={total})",
            "+ loader = balancer.loader(train)",
        )
    )


def _gain(advice: Advice) -> Iterator[str]:
    estimates = advice.estimates
    name = advice.workers[advice.straggler]
    slow = straggler_words(Straggler(name, advice.slowdown), readable(name, 60))
    if advice.is_balanced and estimates is not None:
        yield (
            f"This run is balanced: an iteration took {time_of(advice, estimates.iteration_time)}, "
            f"{optimum_words(estimates.above_optimum)} ({_range(advice, advice.balanced)})."
        )
        yield gain_words(estimates)
        yield slow
        return
    if advice.saved.value < LITTLE:
        yield (
            f"Balancing would gain little: plain BSP takes {_range(advice, advice.plain)} an "
            f"iteration, the optimum {_range(advice, advice.balanced)}."
        )
        return
    yield (
        f"Balancing would cut the iteration from {_range(advice, advice.plain)} (plain BSP) to "
        f"{_range(advice, advice.balanced)} (the optimum): {percent_range(advice.saved)} less."
    )
    yield slow


def _waiting(advice: Advice) -> Iterator[str]:
    whose = " with plain BSP" if advice.overheads is None else ""
    yield f"Waiting{whose} is {percent(advice.waiting_share)} of the workers' time."


def _assumptions(advice: Advice) -> Iterator[str]:
    if advice.identified is None or all(advice.identified):
        return
    pairs = zip(advice.workers, advice.identified, strict=True)
    unknown = [readable(name) for name, identified in pairs if not identified]
    whose = "any worker" if len(unknown) == len(advice.workers) else _names(unknown)
    yield (
        f"Batch sizes do not show the overhead of {whose}, as they varied too little, or with the "
        "speeds: a likely one is assumed, and the ranges allow for others."
    )


def _keeping(advice: Advice) -> Iterator[str]:
    if advice.not_worth_keeping:
        i = advice.workers.index(advice.not_worth_keeping[0])
        yield (
            f"Not worth keeping: {_names(advice.not_worth_keeping)}. Without "
            f"{readable(advice.workers[i])} an iteration would take "
            f"{time_of(advice, advice.times_without[i])} in place of "
            f"{time_of(advice, advice.balanced.value)}."
        )
    selection = advice.selection
    if selection is not None:
        yield (
            f"If {len(selection.left_out)} must go, let it be {_names(selection.left_out)}: an "
            f"iteration would then take {time_of(advice, selection.iteration_time)}, with batch "
            f"sizes {'/'.join(map(str, selection.batch_sizes))}."
        )


def _totals(advice: Advice) -> Iterator[str]:
    better = advice.better_total
    [now] = [total for total in advice.totals if total.total == advice.total]
    if advice.identified is not None and not any(advice.identified):
        yield (
            "Whether another total batch would make better use of the fast workers is unknown "
            "without overheads."
        )
    elif better is not None:
        yield (
            f"A total batch of {better.total} in place of {advice.total} would make better use of "
            f"the fast workers: {better.speed / now.speed - 1:.0%} more samples a second, with "
            f"{time_of(advice, better.iteration_time)} an iteration. It changes what is trained: "
            "the learning rate may have to follow."
        )
    else:
        yield f"No larger total batch would bring much more samples a second than {advice.total}."


def _range(advice: Advice, estimate: Estimate) -> str:
    low, high = time_of(advice, estimate.low), time_of(advice, estimate.high)
    value = time_of(advice, estimate.value)
    return value if low == high else f"{value} ({low} to {high})"


def _names(names: Sequence[str]) -> str:
    shown = ", ".join(readable(name) for name in names[:8])
    return shown if len(names) <= 8 else f"{shown} and {len(names) - 8} more"
