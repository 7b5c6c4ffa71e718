"""Every experiment is made once, quickly, whichever tests look at it."""

from functools import cache

import pytest

from evenstep.reproduce.experiment import Settings
from evenstep.reproduce.experiments import EXPERIMENTS

QUICK = Settings(quick=True)


@cache
def quick_result(name):
    return EXPERIMENTS[name].run(QUICK, lambda share, text: None)


@pytest.fixture(scope="session")
def result():
    """Makes an experiment as --quick does, and returns what came out."""
    return quick_result


def column(table, name):
    """Return a column of a table by what the first column says."""
    return {next(iter(row.values())): row[name] for row in table.rows}
