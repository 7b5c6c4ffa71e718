"""Looking at tables."""


def column(table, name):
    """Return a column of a table by what the first column says."""
    return {next(iter(row.values())): row[name] for row in table.rows}
