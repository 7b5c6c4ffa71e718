"""The cost of staleness under several conditions: updates of ASP and SSP over BSP's."""

from __future__ import annotations

from collections.abc import Mapping

from reproduction.end_to_end import ASP, BSP, MODELS, NAMES, SSP, Trainings, near, shown
from reproduction.result import Row, Table, beside
from reproduction.training import Runs, over
from reproduction.wording import cell

MORE = 1.1
"""A scheme needs more updates than BSP if it needs more than this many times as many."""
UP_TO = {ASP: "up to 4.76", SSP: "up to 2.05"}
"""The paper's updates over BSP's."""


def conditions_table(done: Trainings, conditions: Mapping[str, Runs]) -> Table:
    """Show how many updates ASP and SSP need under each condition."""
    return Table(
        f"{MODELS[done.model]}'s times, training {done.workload}: what staleness costs",
        "virtual",
        [_row(how, runs) for how, runs in conditions.items()],
        "The target of each condition is 95 % of the best accuracy of its own BSP; where ASP and "
        "SSP have the whole learning rate, BSP is that of the first row. An update is n gradients, "
        "whether they are averaged or not.",
    )


def _row(how: str, runs: Runs) -> Row:
    target = near(runs)
    return {
        "ASP and SSP have": how,
        "target": target,
        **{
            name: value
            for label in (ASP, SSP)
            for name, value in beside(
                f"{NAMES[label]}: updates / BSP",
                shown(runs, label, "updates", target),
                UP_TO[label],
            ).items()
        },
        **{f"{NAMES[label]}: best accuracy": runs[label][0].best for label in (BSP, ASP, SSP)},
    }


def where_it_costs(conditions: Mapping[str, Runs]) -> str:
    """Return under which conditions ASP needs more updates than BSP, in words."""
    costs = {
        how: value
        for how, runs in conditions.items()
        if (value := over(runs, BSP, "updates", near(runs))[ASP]) is None or value > MORE
    }
    if not costs:
        return f"nor does it need more than {MORE} times BSP's under any other condition tried"
    found = "; ".join(
        f"with {how} it "
        + ("does not get there" if value is None else f"needs {cell(value)} times as many")
        for how, value in costs.items()
    )
    return f"by the table of what staleness costs, {found}"
