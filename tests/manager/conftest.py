"""A manager for all tests of this folder that do not stop it; jobs keep them apart."""

import itertools

import pytest

from tests.manager.managers import running

_numbers = itertools.count()


@pytest.fixture(scope="session")
def manager(tmp_path_factory):
    with running(log=tmp_path_factory.mktemp("manager") / "log") as started:
        yield started


@pytest.fixture
def job():
    """A name that no other test has."""
    return f"job-{next(_numbers)}"
