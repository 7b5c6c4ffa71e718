"""One page of all experiments; everything on it that is no markup of ours is escaped."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

from evenstep.insight.report.document import document, inlined
from reproduction.drawing import picture_file
from reproduction.record import Record
from reproduction.result import KINDS, PAPER, Claim, Plot, Table
from reproduction.wording import TITLE, about, cell, kinds_in_words, reason, tally

_STYLE = """
th, td { overflow-wrap: normal; white-space: normal; padding: .3rem .5rem }
th { vertical-align: bottom } td:first-child { min-width: 7rem }
td.paper, th.paper { color: var(--pale); font-style: italic }
h3 { font-size: 1rem; margin: 1.25rem 0 .25rem } li.no { color: var(--warn) }
section { border-top: 2px solid var(--rule); margin-top: 2rem }
"""


def page(records: Sequence[Record], pictures: Path) -> str:
    """Return the page of some records, whose plots are in a folder."""
    links = "".join(
        f'<tr><td><a href="#{escape(r.name)}">{escape(r.name)}</a></td>'
        f"<td>{escape(r.of_paper)}</td><td>{escape(kinds_in_words(r.result.kinds))}</td>"
        f"<td>{escape(tally(r))}</td></tr>"
        for r in records
    )
    head = "<tr><th>experiment</th><th>of the paper</th><th>its figures are</th><th>claims</th>"
    return document(
        TITLE,
        f"<h1>{escape(TITLE)}</h1>"
        "<p>LB-BSP: <i>Semi-dynamic load balancing</i>, SoCC '20. Every table and plot says "
        "whether its figures were measured on this machine, are of virtual time, emulated, or "
        "others' measurements. Columns in italics are the paper's. No number was tuned towards "
        "them.</p>"
        f'<div class="wide"><table>{head}</tr>{links}</table></div>\n'
        + "\n".join(_section(record, pictures) for record in records),
        _STYLE,
    )


def _section(record: Record, pictures: Path) -> str:
    result = record.result
    source = f"{record.of_paper}; {kinds_in_words(result.kinds)}"
    body = (
        f"<p>{escape(reason(result))}</p>"
        if result.is_empty
        else _claims(result.claims)
        + _list("Where it differs, and why", result.differences)
        + "".join(map(_table, result.tables))
        + "".join(
            _plot(plot, picture_file(pictures, record.name, i), record.command)
            for i, plot in enumerate(result.plots)
        )
    )
    return (
        f'<section id="{escape(record.name)}">'
        f"<h2>{escape(record.name)}: {escape(record.title)}</h2>"
        f'<p class="source">{escape(source)}</p>'
        f'<p class="pale">{escape(about(record))}</p>{body}</section>'
    )


def _claims(claims: Sequence[Claim]) -> str:
    if not claims:
        return ""
    items = "".join(
        f'<li class="{"yes" if claim.holds else "no"}">{"✓" if claim.holds else "✗"} '
        f"{escape(claim.text)} <small>({escape(claim.of)})</small>"
        f"{f' Why: {escape(claim.why)}.' if claim.why else ''}</li>"
        for claim in claims
    )
    return f"<h3>Claims</h3><ul>{items}</ul>"


def _list(title: str, sentences: Sequence[str]) -> str:
    if not sentences:
        return ""
    items = "".join(f"<li>{escape(sentence)}</li>" for sentence in sentences)
    return f"<h3>{escape(title)}</h3><ul>{items}</ul>"


def _table(table: Table) -> str:
    head = "".join(f"<th{_class(name)}>{escape(name)}</th>" for name in table.columns)
    rows = "".join(
        "<tr>"
        + "".join(f"<td{_class(name)}>{escape(cell(row[name]))}</td>" for name in table.columns)
        + "</tr>"
        for row in table.rows
    )
    note = f'<p class="pale">{escape(table.note)}</p>' if table.note else ""
    return (
        f"<h3>{escape(table.title)} ({escape(KINDS[table.kind])})</h3>"
        f'<div class="wide"><table><tr>{head}</tr>{rows}</table></div>{note}'
    )


def _class(column: str) -> str:
    return ' class="paper"' if column.endswith(PAPER) else ""


def _plot(plot: Plot, picture: Path, command: str) -> str:
    if not picture.is_file():
        missing = f"{picture.name} is not there; {command} draws it where matplotlib is installed"
        return f"<p>There is no picture of {escape(plot.title)}: {escape(missing)}</p>"
    return inlined(picture.read_bytes(), plot.title)
