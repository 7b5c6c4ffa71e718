"""All experiments as Markdown, without plots, for a project's documents."""

from __future__ import annotations

from collections.abc import Sequence

from reproduction.record import Record
from reproduction.result import KINDS, Claim, Row, Table
from reproduction.wording import TITLE, about, cell, kinds_in_words, reason, tally


def markdown(records: Sequence[Record]) -> str:
    """Return the tables, claims and differences of some records."""
    rows = [
        {
            "experiment": record.name,
            "of the paper": record.of_paper,
            "its figures are": kinds_in_words(record.result.kinds),
            "claims": tally(record),
        }
        for record in records
    ]
    return "\n\n".join([f"# {TITLE}", _rows(rows), *map(_section, records)]) + "\n"


def _section(record: Record) -> str:
    result = record.result
    pieces = [
        f"## {record.name}: {record.title}",
        f"{record.of_paper}. `{about(record)}`",
        reason(result),
        "\n".join(map(_claim, result.claims)),
        "\n".join(f"- {sentence}" for sentence in result.differences),
        *map(_table, result.tables),
    ]
    return "\n\n".join(piece for piece in pieces if piece)


def _claim(claim: Claim) -> str:
    if claim.holds:
        return f"- holds ({claim.of}): {claim.text}"
    why = f" Why: {claim.why}." if claim.why else ""
    return f"- **does not hold** ({claim.of}): {claim.text}{why}"


def _table(table: Table) -> str:
    shown = f"**{table.title}** ({KINDS[table.kind]})\n\n{_rows(table.rows)}"
    return f"{shown}\n\n{table.note}" if table.note else shown


def _rows(rows: Sequence[Row]) -> str:
    columns = list(rows[0])
    lines = [columns, ["---"] * len(columns), *([cell(v) for v in row.values()] for row in rows)]
    return "\n".join(f"| {' | '.join(map(_escaped, line))} |" for line in lines)


def _escaped(text: str) -> str:
    """Return a cell's text so that it stays in its cell.

    >>> _escaped("a|b")
    'a\\\\|b'
    """
    return text.replace("|", "\\|")
