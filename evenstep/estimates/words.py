"""Estimates in words: the same digits in every view."""

from __future__ import annotations

import math

from evenstep.estimates.estimates import Estimate, Estimates, Straggler

LITTLE = 0.02
"""Share of the iteration time below which what could be saved is called little."""


def duration(seconds: float) -> str:
    """Return a time with its unit.

    >>> duration(0.00008976), duration(0.0684), duration(0.1375), duration(12.34)
    ('0.09 ms', '68.4 ms', '138 ms', '12.3 s')
    """
    scale, unit = (1e3, "ms") if seconds < 0.9995 else (1.0, "s")
    value = scale * seconds
    if value >= 100:
        return f"{value:.0f} {unit}"
    return f"{value:.3g} {unit}" if value >= 1 else f"{value:.1g} {unit}"


def duration_range(estimate: Estimate) -> str:
    """Return an estimated time, with its range if there is one.

    >>> duration_range(Estimate(0.15, 0.14, 0.16))
    '150 ms (140 ms to 160 ms)'
    """
    value, low, high = map(duration, (estimate.value, estimate.low, estimate.high))
    return value if low == high else f"{value} ({low} to {high})"


def percent(share: float) -> str:
    """Return a share in per cent.

    >>> percent(0.0834)
    '8.3%'
    """
    return f"{share:.1%}"


def percent_range(share: Estimate) -> str:
    """Return an estimated share, with its range if there is one."""
    value, low, high = map(percent, (share.value, share.low, share.high))
    return value if low == high else f"{value} ({low} to {high})"


def times(ratio: Estimate) -> str:
    """Return a ratio, with its range if there is one.

    >>> times(Estimate(2.004, 1.9, 2.1)), times(Estimate.exactly(1.5))
    ('2.00 (1.90 to 2.10)', '1.50')
    """
    value, low, high = (f"{number:.2f}" for number in (ratio.value, ratio.low, ratio.high))
    return value if low == high else f"{value} ({low} to {high})"


def straggler_words(straggler: Straggler | None, name: str) -> str:
    """Return the sentence about the straggler; `name` is the worker's name as it is shown."""
    if straggler is None:
        return ""
    if not straggler.is_clear:
        return "No straggler: with even sizes all workers take about equally long."
    return f"Straggler: {name}, {straggler.slowdown:.1f} times slower than the median worker."


def gain_words(estimates: Estimates) -> str:
    """Return what was gained against plain BSP, or what could be gained."""
    gain = estimates.gain
    if math.isnan(gain.value):
        return "Plain BSP's time is not known: too few iterations, or a worker without a batch."
    plain = duration_range(estimates.plain)
    if estimates.is_even:
        saved = estimates.could_save
        if len(estimates.workers) == 1:
            return "A single worker has nothing to balance."
        if saved.value < LITTLE:
            return "Sizes of plain BSP; balancing would gain little."
        return f"Sizes of plain BSP; balancing could save {percent_range(saved)} of the time."
    if gain.low > 1:
        return f"{times(gain)} times faster than plain BSP, which would take {plain}."
    if gain.high < 1:
        return f"{times(gain.inverse())} times slower than plain BSP, which would take {plain}."
    return f"No clear difference from plain BSP, which would take {plain}."


def optimum_words(above: float) -> str:
    """Return the distance to the optimum, as the end of a sentence.

    >>> optimum_words(0.031), optimum_words(0.0004)
    ('3.1% above the optimum', 'at the optimum')
    """
    return "at the optimum" if above < 0.0005 else f"{percent(above)} above the optimum"


def headline(estimates: Estimates, straggler: str) -> str:
    """Return the figures that matter in one line; `straggler` is the worker's name as shown."""
    words = [
        straggler_words(estimates.straggler, straggler),
        f"Waiting {percent(estimates.waiting_share)}.",
        gain_words(estimates),
    ]
    return " ".join(filter(None, words))
