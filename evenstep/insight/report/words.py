"""A run in words: the first sentences of its report."""

from __future__ import annotations

from collections.abc import Iterator

from evenstep.insight.plots.plot_data import readable
from evenstep.insight.report.figures import Figures

SOURCE_MEANS = {
    "measured": "Measured: real training on real workers.",
    "emulated": "Emulated: real training, on workers that were slowed down on purpose.",
    "simulated": "Simulated: computed in virtual time, nothing was trained.",
}

_EQUAL = 1.05
"""Up to this slowdown, no worker is called a straggler."""


def sentences(figures: Figures) -> list[str]:
    """Return the sentences about a run, the most important first."""
    return [
        *_straggler(figures), *_iteration(figures), *_plain(figures), *_waiting(figures),
        *_state(figures),
    ]  # fmt: skip


def duration(seconds: float) -> str:
    """Return a time with its unit.

    >>> duration(0.00008976), duration(0.0684), duration(0.1375), duration(12.34)
    ('0.09 ms', '68.4 ms', '138 ms', '12.3 s')
    """
    scale, unit = (1e3, "ms") if seconds < 1 else (1.0, "s")
    value = scale * seconds
    if value >= 100:
        return f"{value:.0f} {unit}"
    return f"{value:.3g} {unit}" if value >= 1 else f"{value:.1g} {unit}"


def _straggler(figures: Figures) -> Iterator[str]:
    straggler = figures.straggler
    if straggler is None:
        return
    if straggler.slowdown < _EQUAL:
        yield "There was no straggler: all workers were about equally fast."
    else:
        yield (
            f"Worker {readable(straggler.worker, 60)} was the straggler: "
            f"{straggler.slowdown:.1f} times slower than the median worker."
        )


def _iteration(figures: Figures) -> Iterator[str]:
    before, after, speedup = figures.before, figures.after, figures.speedup
    if after is None:
        yield "No iteration has a known time yet."
        return
    best = _best(figures)
    if before is None or speedup is None:
        yield f"An iteration took {duration(after.iteration_time)}{best}."
    elif speedup > 1:
        yield (
            f"Balancing cut the iteration from {duration(before.iteration_time)} "
            f"({readable(figures.before_is, 60)}) to {duration(after.iteration_time)}{best}: "
            f"{speedup:.2f} times faster."
        )
    else:
        yield (
            f"Balancing brought nothing: an iteration took {duration(before.iteration_time)} "
            f"({readable(figures.before_is, 60)}), and {duration(after.iteration_time)} "
            f"balanced{best}."
        )


def _best(figures: Figures) -> str:
    """Return the distance to the optimum, as the end of a sentence."""
    above = figures.above_optimum
    if above is None:
        return ""
    about = "about " if figures.optimum_is == "estimated" else ""
    if above < 0.0005:
        return ", which is the optimum" if not about else ", about the optimum"
    return f", {about}{above:.1%} above the optimum"


def _plain(figures: Figures) -> Iterator[str]:
    """Yield the estimate of plain BSP, if there is no measurement of it."""
    after, plain = figures.after, figures.plain_estimate
    if figures.before is not None or after is None or plain is None:
        return
    ratio = plain / after.iteration_time
    if ratio > _EQUAL:
        yield (
            f"With plain BSP it would have taken about {duration(plain)} (estimated by lines "
            f"fitted to the run): {ratio:.2f} times as long."
        )
    elif figures.optimum is not None and figures.optimum_is == "estimated":
        saved = 1 - figures.optimum / after.iteration_time
        if saved > 1 - 1 / _EQUAL:
            yield (
                f"Balancing would save about {saved:.0%} of it (estimated by lines fitted to the "
                "run; evenstep advise says more)."
            )


def _waiting(figures: Figures) -> Iterator[str]:
    before, after = figures.before, figures.after
    if after is None:
        return
    if before is None:
        yield f"{after.waiting_share:.1%} of the workers' time was spent waiting."
    else:
        verb = "fell" if after.waiting_share < before.waiting_share else "went"
        yield (
            f"Waiting {verb} from {before.waiting_share:.1%} to {after.waiting_share:.1%} of the "
            "workers' time."
        )


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
