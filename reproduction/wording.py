"""Puts results into words, for page, Markdown and terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from reproduction.record import Record
from reproduction.result import KINDS, REAL, Result

TITLE = "The paper's evaluation, re-made"


def tally(record: Record) -> str:
    """Return how many of the claims hold."""
    if record.result.is_empty:
        return "failed" if record.result.failed else "skipped"
    holding = sum(claim.holds for claim in record.result.claims)
    return f"{holding} of {len(record.result.claims)} claims hold"


def reason(result: Result) -> str:
    """Return why there is no result, if there is none.

    >>> reason(Result(failed="url.svm: must be text"))
    'Failed: url.svm: must be text'
    """
    if result.failed:
        return f"Failed: {result.failed}"
    return f"Skipped: {result.skipped}" if result.skipped else ""


def kinds_in_words(kinds: Iterable[str]) -> str:
    """Return what figures are, of one kind or of several.

    >>> kinds_in_words(["virtual", "measured"])
    'virtual time, simulated; measured on this machine'
    """
    return "; ".join(KINDS[kind] for kind in kinds) or cell(None)


def about(record: Record) -> str:
    """Return how to make it again: command, seeds, date, machine, version and data.

    How busy the machine was is said of what was measured on it.
    """
    seeds = f", seeds {', '.join(map(str, record.result.seeds))}" if record.result.seeds else ""
    return (
        f"{record.command}{seeds}; {record.date}, {duration(record)} on {record.machine}"
        f"{_load(record)}, Evenstep {_version(record)}, data {_data(record)}"
    )


def duration(record: Record) -> str:
    """Return how long it took, and what is not in that."""
    parts = f"{record.kept_parts} part{'' if record.kept_parts == 1 else 's'}"
    without = f" (without {parts} that had been finished before)" if record.kept_parts else ""
    return f"{record.seconds:g} s{without}"


def _load(record: Record) -> str:
    if not (record.load and REAL & set(record.result.kinds)):
        return ""
    start, end = record.load
    return f", load average {start:g} at the start and {end:g} at the end"


def _version(record: Record) -> str:
    version = str(record.made_with.get("version"))
    return f"{version} ({record.commit})" if record.commit else version


def _data(record: Record) -> str:
    data = record.made_with.get("data") or {}
    names = f"found: {', '.join(map(str, data.values()))}" if data else "that come along"
    return f"{names}{', quick' if record.made_with.get('quick') else ''}"


def of_seeds(what: str, seeds: Sequence[int]) -> str:
    """Return what figures are of seeds, in words.

    >>> of_seeds("means", [0]), of_seeds("means", [0, 1])
    ('seed 0', 'means over seeds 0, 1')
    """
    names = ", ".join(map(str, seeds))
    return f"{what} over seeds {names}" if len(seeds) > 1 else f"seed {names}"


def cell(value: Any) -> str:
    """Return a figure as it is shown in tables.

    >>> cell(0.12345), cell(1234567.0), cell(None), cell([89, 21]), cell(True)
    ('0.1235', '1234567', '-', '89 / 21', 'yes')
    """
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return " / ".join(map(cell, value))
    if isinstance(value, float):
        return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return str(value)
