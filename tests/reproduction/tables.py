"""Looking at tables."""


def shapes(result):
    """Return title, kind and columns of all tables."""
    return [(table.title, table.kind, table.columns) for table in result.tables]


def column(table, name):
    """Return a column of a table by what the first column says."""
    return {next(iter(row.values())): row[name] for row in table.rows}
