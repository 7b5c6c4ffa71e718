"""A run in words: the first sentences of its report."""

from __future__ import annotations

import math
from collections.abc import Iterator

from evenstep.estimates import Estimates
from evenstep.estimates.words import (
    duration,
    gain_words,
    optimum_words,
    percent,
    straggler_words,
    times,
)
from evenstep.insight.plots.plot_data import readable
from evenstep.insight.report.figures import Figures

SOURCE_MEANS = {
    "measured": "Measured: real training on real workers.",
    "emulated": "Emulated: real training, on workers that were slowed down on purpose.",
    "simulated": "Simulated: computed in virtual time, nothing was trained.",
}


def sentences(figures: Figures) -> list[str]:
    """Return the sentences about a run, the most important first."""
    estimates = figures.estimates
    if estimates is None:
        return ["No iteration has a known time yet.", *_state(figures)]
    return [
        *_straggler(figures, estimates), _iteration(figures, estimates),
        *_gain(figures, estimates), _waiting(figures, estimates),
        f"These are means of {estimates.about}.", *_state(figures),
    ]  # fmt: skip


def _straggler(figures: Figures, estimates: Estimates) -> Iterator[str]:
    # A run without balancing shows the speeds with even sizes themselves.
    straggler = (figures.plain_run or estimates).straggler
    if straggler is not None:
        yield straggler_words(straggler, readable(straggler.worker, 60))


def _iteration(figures: Figures, estimates: Estimates) -> str:
    about = "" if figures.known_optimum is not None else "about "
    above = figures.above_optimum
    known = above is not None and not math.isnan(above)
    best = f", {about}{optimum_words(above)}" if known and above is not None else ""
    return f"An iteration took {duration(estimates.iteration_time)}{best}."


def _gain(figures: Figures, estimates: Estimates) -> Iterator[str]:
    if figures.plain_run is None or figures.gain is None:
        yield gain_words(estimates)
        return
    plain, gain = duration(figures.plain_run.iteration_time), figures.gain.value
    name = readable(figures.plain_is, 60)
    if gain > 1:
        yield f"{times(figures.gain)} times faster than {name}, which took {plain} in its own run."
    else:
        slower = times(figures.gain.inverse())
        yield f"{slower} times slower than {name}, which took {plain} in its own run."
    if not estimates.is_even and not math.isnan(estimates.plain.value):
        low, high = duration(estimates.plain.low), duration(estimates.plain.high)
        yield f"From the balanced run alone, plain BSP is estimated at {low} to {high}."


def _waiting(figures: Figures, estimates: Estimates) -> str:
    share = percent(estimates.waiting_share)
    if figures.plain_run is None:
        return f"{share} of the workers' time was spent waiting."
    before = percent(figures.plain_run.waiting_share)
    verb = "fell" if estimates.waiting_share < figures.plain_run.waiting_share else "went"
    return f"Waiting {verb} from {before} to {share} of the workers' time."


def _state(figures: Figures) -> Iterator[str]:
    if figures.num_skipped:
        seen = figures.num_iterations - figures.num_skipped
        yield (
            f"The report uses {seen} of {figures.num_iterations} iterations: the first and the "
            "last ones, and some in between."
        )
    if not figures.complete:
        yield "The log is cut off in the middle of a line; the report covers the lines before it."
    elif not figures.ended:
        yield "The run had not ended when the log was read, or it was killed."
