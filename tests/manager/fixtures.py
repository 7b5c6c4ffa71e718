"""A manager and names of jobs, for tests here and of the adapters."""

import itertools
from collections.abc import Iterator

import pytest

from tests.manager.managers import Manager, running

_numbers = itertools.count()


@pytest.fixture(scope="session")
def manager(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Manager]:
    """A manager for all tests that do not stop it; jobs keep them apart."""
    with running(log=tmp_path_factory.mktemp("manager") / "log") as started:
        yield started


@pytest.fixture
def job() -> str:
    """A name that no other test has."""
    return f"job-{next(_numbers)}"
