"""The result of the demo: its figures, in words and as JSON, its plot and its report."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from evenstep import runlog
from evenstep.cli.demo_settings import SHARES, DemoSettings
from evenstep.estimates.words import duration
from evenstep.insight.plots.plot import plot
from evenstep.insight.report.figures import Figures, figures_of
from evenstep.insight.report.page import answer_of, page, series_of
from evenstep.insight.report.words import SOURCE_MEANS, sentences


@dataclass(frozen=True, eq=False)
class DemoResult:
    """The two runs of the demo, plain and balanced."""

    settings: DemoSettings
    figures: Figures
    plain: runlog.RunLog
    balanced: runlog.RunLog
    best_sizes: list[int] | None
    """The optimum, if the curves of the devices are known."""
    training: dict[str, Any]
    """The comparison of the two nets by worker 0."""

    @classmethod
    def of(cls, settings: DemoSettings) -> DemoResult:
        """Read the files of the workers."""
        plain, balanced = (runlog.read(settings.log(run)) for run in ("plain", "balanced"))
        best_sizes, optimum = _optimum(settings)
        if optimum is None:
            optimum = _estimated_optimum(figures_of(plain))
        figures = figures_of(balanced, plain, optimum)
        training = json.loads(settings.result.read_text())
        return cls(settings, figures, plain, balanced, best_sizes, training)

    def write_files(self) -> dict[str, str]:
        """Draw the plot and write the report; return the paths of all files."""
        folder = Path(self.settings.folder)
        picture, report = folder / "demo.png", folder / "demo.html"
        series = series_of(self.figures, self.balanced, self.plain)
        plot(self.balanced, picture, series, answer_of(self.figures))
        report.write_text(page(self.figures, self.balanced, self.plain), encoding="utf-8")
        logs = {f"run log, {run}": self.settings.log(run) for run in ("plain", "balanced")}
        paths = {"plot": picture, "report": report, **logs}
        return {what: str(path.resolve()) for what, path in paths.items()}

    def as_json(self) -> dict[str, Any]:
        return {
            **self.figures.as_json(),
            **self.training,
            "optimum_batch_sizes": self.best_sizes,
            "seconds": {"plain": _seconds(self.plain), "balanced": _seconds(self.balanced)},
            "speedup_by_clock": self._speedup_by_clock,
        }

    def lines(self) -> Iterator[str]:
        """Yield the result in words."""
        yield self._how()
        yield from sentences(self.figures)
        yield self._by_clock()
        yield from self._sizes()
        difference, size = (self.training[f"largest_{w}"] for w in ("difference", "parameter"))
        yield (
            f"The two runs trained on the same samples: their parameters differ by at most "
            f"{difference:.1e} (the largest is {size:.2f})."
        )
        accuracy = self.training["accuracy"]
        yield (
            f"Both nets were tested on digits they had not seen: {accuracy['plain']:.1%} and "
            f"{accuracy['balanced']:.1%} right."
        )
        yield from self._remarks()

    @property
    def _speedup_by_clock(self) -> float:
        return _seconds(self.plain) / _seconds(self.balanced)

    def _by_clock(self) -> str:
        """Return both speedups, of settled iterations and by the clock, and why they differ."""
        runs = (self.plain, self.balanced)
        took = " and ".join(f"{_seconds(run):.1f} s" for run in runs)
        clock = (
            f"by the clock, all {self.figures.num_iterations} iterations took {took}, "
            f"{self._speedup_by_clock:.2f} times faster"
        )
        settled = _settled_speedup(self.figures)
        if settled is None:
            return f"Altogether, {clock}."
        between = " and ".join(map(_between_iterations, runs))
        return (
            f"The {settled:.2f} times are for settled iterations (the second half), until the last "
            f"worker has its gradients; {clock}: that counts the first iterations too, before "
            f"sizes had settled, and the exchange of gradients between iterations ({between})."
        )

    def _remarks(self) -> Iterator[str]:
        late = self.training["late_batches"]
        if late:
            yield (
                f"This machine was busy: {late} batches took longer to compute than the emulated "
                "devices would have, so that times are longer than theirs."
            )

    def _how(self) -> str:
        if not self.settings.throttled:
            return SOURCE_MEANS[self.figures.source]
        shares = "/".join(f"{share:.0%}" for share in SHARES[: self.settings.num_workers])
        return f"Measured: real training, with the workers throttled to {shares} of a CPU."

    def _sizes(self) -> Iterator[str]:
        final = _join(self.balanced.segments[-1].batch_sizes[-1].tolist())
        optimum = self.figures.optimum
        if self.best_sizes is not None and optimum is not None:
            yield (
                f"Batch sizes ended at {final}; the optimum of the emulated devices is "
                f"{_join(self.best_sizes)}, with {duration(optimum)} an iteration."
            )
        elif optimum is not None:
            yield (
                f"Batch sizes ended at {final}; the optimum is an estimate, {duration(optimum)} "
                "if all workers keep the speed of the plain run."
            )


def _optimum(settings: DemoSettings) -> tuple[list[int] | None, float | None]:
    """Return the exact optimum of the emulated devices."""
    if settings.throttled:
        return None, None
    cluster = settings.cluster
    best = cluster.optimum(cluster.conditions(0, now=0.0))
    return best.tolist(), float(cluster.curves.times_at(best).max())


def _estimated_optimum(plain: Figures) -> float | None:
    if plain.phase is None:
        return None
    return float(plain.total / np.sum(plain.phase.speeds))


def _settled_speedup(figures: Figures) -> float | None:
    """Return the gain that the sentences about the run give."""
    return None if figures.gain is None else figures.gain.value


def _seconds(run_log: runlog.RunLog) -> float:
    """Return the wall-clock time of a run, up to the end of its last iteration."""
    return float(run_log.starts[-1] + np.nan_to_num(run_log.iteration_times[-1]))


def _between_iterations(run_log: runlog.RunLog) -> str:
    """Return the median time from the last worker's gradients to the next iteration."""
    times = np.diff(run_log.starts) - run_log.iteration_times[:-1]
    known = times[~np.isnan(times)]
    return duration(float(np.median(known))) if len(known) else "unknown"


def _join(sizes: list[int]) -> str:
    return "/".join(map(str, sizes))
