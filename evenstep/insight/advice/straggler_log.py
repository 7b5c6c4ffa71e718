"""Times from a log of the straggler detection of NVIDIA's resiliency extension (NVRx).

Its reports have scores instead of times: the speed of a rank over that of the fastest rank.

    GPU relative performance:
      Rank=3 Node=gpu-07 Score=0.62
      Rank=0 Node=gpu-01 Score=1.00

With many ranks only the worst and the best of them are listed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from evenstep.errors import DataFileError
from evenstep.insight.advice.observations import FEWEST, Observations, given_sizes

_HEADING = re.compile(r"GPU (relative|individual) performance:")
_COUNT = re.compile(r"performing \d+/(\d{1,18}) ranks:")
_SCORE = re.compile(r"Rank=(\d{1,18}) Node=(\S+) Score=(\d+(?:\.\d+)?|\.\d+)")
_MOST_RANKS = 100_000


def is_straggler_log(text: str) -> bool:
    return "GPU relative performance:" in text


def observations_of_straggler_log(
    name: str, text: str, batch_sizes: Sequence[int] | None
) -> Observations:
    """Read the relative scores of all reports in a log; times have no unit."""
    reports = [section for kind, section in _sections(text) if kind == "relative"]
    scores = [_scores(name, section) for section in reports]
    count = max((num_ranks for _, num_ranks in scores), default=0)
    listed = {rank for report, _ in scores for rank in report}
    count = max(count, 1 + max(listed, default=-1))
    if count > _MOST_RANKS:
        raise DataFileError(f"{name}: there must be at most {_MOST_RANKS} ranks, got {count}")
    matrix = np.full((len(scores), count), np.nan)
    for row, (report, _) in zip(matrix, scores, strict=True):
        for rank, score in report.items():
            row[rank] = score
        # A rank that is not listed is between the worst and the best ranks.
        row[np.isnan(row)] = np.nanmedian(row)
    times = np.min(matrix) / matrix if len(matrix) else matrix
    if 0 < len(times) < FEWEST:
        # One report already summarises many iterations.
        times = np.repeat(times, FEWEST, axis=0)
    sizes = given_sizes(batch_sizes, count, "a log of straggler detection")
    remarks = [
        "The log has scores in place of times: times are shares of the slowest worker's, and "
        "sizes are assumed to have been as given."
    ]
    if len(listed) < count:
        remarks.append(
            f"{count - len(listed)} of {count} ranks are in no report: they are assumed to be "
            "as fast as the median of those that are."
        )
    return Observations(
        [f"rank {rank}" for rank in range(count)],
        np.broadcast_to(sizes.astype(np.float64), times.shape), times, int(sizes.sum()),
        relative=True, remarks=tuple(remarks),
    )  # fmt: skip


def _sections(text: str) -> list[tuple[str, str]]:
    marks = list(_HEADING.finditer(text))
    ends = [mark.start() for mark in marks[1:]] + [len(text)]
    return [(mark[1], text[mark.end() : end]) for mark, end in zip(marks, ends, strict=True)]


def _scores(name: str, section: str) -> tuple[dict[int, float], int]:
    """Return the scores of a report by rank, and the number of ranks."""
    found = {int(rank): float(score) for rank, _, score in _SCORE.findall(section)}
    if not found:
        raise DataFileError(f"{name}: a report of relative performance must list ranks, got none")
    for rank, score in found.items():
        if not 0 < score <= 1:
            raise DataFileError(
                f"{name}: the score of a rank must be above 0, up to 1, got {score} for {rank}"
            )
    counts = [int(count) for count in _COUNT.findall(section)]
    return found, max([len(found), *counts])
