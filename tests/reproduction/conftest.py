"""Every experiment is made once, quickly, whichever tests look at it."""

from functools import cache

import pytest

from evenstep.errors import EvenstepError
from reproduction.experiment import Settings, Skipped
from reproduction.experiments import EXPERIMENTS
from reproduction.run import run


@pytest.fixture(scope="session")
def out(tmp_path_factory):
    """The folder that all of them are kept in."""
    return tmp_path_factory.mktemp("reproduction")


@pytest.fixture(scope="session")
def record(out):
    """Makes an experiment as --quick does, and returns its record; record and plots are kept."""

    @cache
    def make(name):
        return run(EXPERIMENTS[name], Settings(quick=True), out, lambda share, text: None)

    return make


@pytest.fixture(scope="session")
def result(record):
    """Makes an experiment as --quick does, and returns what came out."""

    def make(name):
        made = record(name).result
        if made.failed:
            raise EvenstepError(made.failed)
        if made.skipped:
            raise Skipped(made.skipped)
        return made

    return make
