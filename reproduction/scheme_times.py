"""Schemes timed over the same seconds of a trace, without gradients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from evenstep.simulator.engine.comparison import Comparison
from evenstep.simulator.engine.scheme_specs import SchemeSpec, parse_scheme_specs
from reproduction.experiment import Progress, steps
from reproduction.parts import Parts
from reproduction.window import Window


@dataclass(frozen=True)
class Timed:
    """The updates of one scheme with one seed in a window."""

    updates: float
    per_update: float
    """Seconds per update of all workers."""


Times = Mapping[str, Sequence[Timed]]
"""Label of a contender: its runs, one per seed."""


def window_after(
    comparison: Comparison, scheme: str, iterations: int, seeds: Sequence[int], seconds: float
) -> Window:
    """Return a window that begins, in whole minutes, after some iterations of a scheme."""
    _, contender = parse_scheme_specs(scheme)
    learning = replace(comparison, iterations=iterations)
    last = max(learning.run(contender, seed, lambda progress: None).time for seed in seeds)
    return Window.after(last, seconds)


def time_schemes(
    what: str,
    comparison: Comparison,
    schemes: str,
    window: Window,
    seeds: Sequence[int],
    parts: Parts,
    progress: Progress,
) -> Times:
    """Run every scheme with every seed to the window's end; runs that `parts` has are not made."""
    contenders = {contender.label: contender for contender in parse_scheme_specs(schemes)}
    work = [(what, label, seed) for label in contenders for seed in seeds]
    times: dict[str, list[Timed]] = {label: [] for label in contenders}
    for _, label, seed in steps(work, progress):
        made = parts.get(
            f"{what}/{window.start:g}-{window.end:g}/{label}/{seed}",
            partial(_time, comparison, contenders[label], window, seed),
        )
        times[label].append(Timed(**made))
    return times


def over(times: Times, label: str, base: str) -> float:
    """Return the median over seeds of a scheme's time per update over another's."""
    ratios = [
        ours.per_update / by.per_update for ours, by in zip(times[label], times[base], strict=True)
    ]
    return float(np.median(ratios))


def _time(comparison: Comparison, contender: SchemeSpec, window: Window, seed: int) -> Any:
    done = comparison.times(contender, seed, until=window.end)
    return asdict(Timed(window.updates(done), window.per_update(done)))
