"""Claims about Cluster-A: the paper's about LB-BSP, for Alg. 2, and ours for `equal_finish`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from reproduction.end_to_end import (
    ALG_2,
    ASP,
    BALANCED,
    BSP,
    MODELS,
    NAMES,
    SSP,
    Trainings,
    who_missed,
)
from reproduction.result import Claim
from reproduction.staleness import MORE, where_it_costs
from reproduction.steady_state import ALL, ORACLE, SteadyState
from reproduction.training import Runs
from reproduction.without_v100s import MODEL, PAPER, floor
from reproduction.wording import cell

INCEPTION = "inception_v3"
_SAME = 0.05
_LESS = 0.02
"""Gains that differ by no more are the same."""


def claims(
    done: Sequence[Trainings], made: SteadyState, conditions: Mapping[str, Runs]
) -> list[Claim]:
    """Return all claims; `made` has time per update, `done` what was trained."""
    return [
        *(
            claim
            for label in (ALG_2, BALANCED)
            for claim in (
                _beats_ssp(label, made),
                _beats_asp(label, made),
                _less_heterogeneous(label, made),
                _before_bsp(label, done),
                _same_updates(label, done),
                _first_of_all(label, done),
            )
        ),
        _fastest(done),
        _asp_needs_more(done, conditions),
    ]


def _claim(label: str, name: str, text: str, failing: Sequence[str], why: str = "") -> Claim:
    """Return the paper's claim about Alg. 2, or ours about equal_finish; it holds if none fails."""
    is_papers = label == ALG_2
    return Claim(
        name if is_papers else f"our_{name}",
        text,
        not failing,
        "paper" if is_papers else "evenstep",
        why="; ".join([*failing, *([why] if why else [])]) if failing else "",
    )


def _beats_ssp(label: str, made: SteadyState) -> Claim:
    paces = {
        (model, base): made.pace((ALL, model), label, base)
        for model in MODELS
        for base in (BSP, SSP)
    }
    return _claim(
        label,
        "beats_ssp",
        f"Once settled, {NAMES[label]} takes less time per update than BSP and SSP, with every "
        "model.",
        [
            f"with {MODELS[model]} it takes {value:.2f} of {NAMES[base]}'s, where an oracle takes "
            f"{made.pace((ALL, model), ORACLE, base):.2f}"
            for (model, base), value in paces.items()
            if value >= 1
        ],
    )


def _beats_asp(label: str, made: SteadyState) -> Claim:
    ours, oracles = (made.pace((ALL, INCEPTION), each, ASP) for each in (label, ORACLE))
    return _claim(
        label,
        "beats_asp_with_inception",
        f"With Inception-V3, {NAMES[label]} once settled takes even less time per update than ASP "
        f"(paper: 0.85 of ASP's; here {ours:.2f}).",
        [f"an oracle takes {oracles:.2f} of ASP's on these curves"] if ours >= 1 else [],
    )


def _less_heterogeneous(label: str, made: SteadyState) -> Claim:
    def gains(scheme: str) -> list[float]:
        return [1 - made.pace((num_workers, MODEL), scheme, BSP) for num_workers in PAPER]

    papers = [f"{1 - value:.0%}" for value in PAPER.values()]
    most = [1 - floor(num_workers) for num_workers in PAPER]
    with_them, without = gains(label)
    why = (
        f"an oracle gains {_percent(gains(ORACLE))}; no batch sizes gain more than "
        f"{_percent(most)}, noise aside, as with a single sample the slowest worker takes the rest"
    )
    return _claim(
        label,
        "less_heterogeneous",
        f"Without the V100s {NAMES[label]} gains less over BSP once settled, by more than "
        f"{100 * _LESS:g} points (paper: {papers[0]} with 16 workers, {papers[1]} with 12; here "
        f"{_percent([with_them, without])}).",
        [why] if with_them <= without + _LESS else [],
    )


def _before_bsp(label: str, done: Sequence[Trainings]) -> Claim:
    return _claim(
        label,
        "before_bsp",
        f"{NAMES[label]} reaches the target before BSP, with every model "
        f"({_here(done, 'time', label, 'of its time, settling included')}).",
        [_costs(d, [label]) for d in done if not _less(d.ratio("time", label), 1)],
    )


def _same_updates(label: str, done: Sequence[Trainings]) -> Claim:
    return _claim(
        label,
        "same_updates",
        f"{NAMES[label]} needs as many updates as BSP, within {_SAME:.0%} "
        f"({_here(done, 'updates', label, 'times as many')}).",
        [
            f"with {MODELS[d.model]} {_updates(d, label)}"
            for d in done
            if (value := d.ratio("updates", label)) is None or abs(value - 1) >= _SAME
        ],
    )


def _updates(done: Trainings, label: str) -> str:
    value = done.ratio("updates", label)
    if value is None:
        return _why_none(done, label)
    every = done.comparison.evaluate_every
    return f"it needs {cell(value)} times as many; the net is evaluated every {every} updates"


def _first_of_all(label: str, done: Sequence[Trainings]) -> Claim:
    failing = []
    for d in done:
        theirs = {
            scheme: time
            for scheme in (BSP, ASP, SSP)
            if (time := d.ratio("time", scheme)) is not None
        }
        first = min(theirs, key=theirs.__getitem__, default=BSP)
        if not (theirs and _less(d.ratio("time", label), theirs[first])):
            # The ratio of BSP to itself says nothing.
            failing.append(_costs(d, [label] if first == BSP else [label, first]))
    return _claim(
        label,
        "first_of_all",
        f"{NAMES[label]} reaches the target before BSP, ASP and SSP, with every model (paper: up "
        "to 54 % before the second best).",
        failing,
    )


def _fastest(done: Sequence[Trainings]) -> Claim:
    pairs = [(d, d.ratio("time", BALANCED), d.ratio("time", ALG_2)) for d in done]
    failing = [
        _costs(d, [BALANCED, ALG_2])
        for d, ours, papers in pairs
        if ours is None or ours >= 1 or (papers is not None and papers < ours)
    ]
    return _claim(
        BALANCED,
        "fastest_of_bsp_kinds",
        "equal_finish reaches the target before BSP and no later than Alg. 2, with every model.",
        failing,
    )


def _asp_needs_more(done: Sequence[Trainings], conditions: Mapping[str, Runs]) -> Claim:
    missed = [MODELS[d.model] for d in done if d.ratio("updates", BSP) is None]
    failing = [
        f"with {MODELS[d.model]} it needs {cell(value)} times as many"
        for d in done
        if (value := d.ratio("updates", ASP)) is not None and value <= MORE
    ]
    # If BSP itself missed the target, no scheme can be said to need more than BSP.
    failing += [f"BSP did not reach the target with {name}" for name in missed]
    return _claim(
        ALG_2,
        "asp_needs_more_updates",
        f"ASP needs more updates than BSP, more than {MORE:g} times as many with every model "
        "(paper: up to 4.76 times; "
        f"{_here(done, 'updates', ASP, 'with 1/n of the learning rate for each gradient')}).",
        failing,
        why=where_it_costs(conditions),
    )


def _less(ours: float | None, theirs: float) -> bool:
    return ours is not None and ours < theirs


def _costs(done: Trainings, labels: Sequence[str]) -> str:
    """Return what some schemes took to the target, or why that is not known."""
    costs = []
    for label in labels:
        time, updates = (done.ratio(figure, label) for figure in ("time", "updates"))
        costs.append(
            _why_none(done, label)
            if time is None or updates is None
            else f"{NAMES[label]} took {cell(time)} of BSP's time, for {cell(updates)} times its "
            "updates"
        )
    return f"with {MODELS[done.model]} {', '.join(costs)}"


def _here(done: Sequence[Trainings], figure: str, label: str, of: str) -> str:
    """Return the ratios to BSP's that there are, and with which models there is none."""
    ratios = [cell(value) for d in done if (value := d.ratio(figure, label)) is not None]
    none = [
        f"with {MODELS[d.model]} {_why_none(d, label)}"
        for d in done
        if d.ratio(figure, label) is None
    ]
    return "; ".join([*([f"here {', '.join(ratios)} {of}"] if ratios else []), *none])


def _why_none(done: Trainings, label: str) -> str:
    """Return why a scheme has no ratio to BSP's."""
    names = who_missed(done.runs, label, done.target)
    return f"{names} did not reach the target" if names else "there is no ratio to BSP's"


def _percent(values: Sequence[float]) -> str:
    return " and ".join(f"{value:.0%}" for value in values)
