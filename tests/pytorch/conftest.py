"""The worker processes that the tests of the PyTorch adapter share, and a manager for them."""

import itertools
from collections.abc import Iterator

import pytest

from tests.distributed.workers import Workers
from tests.manager.managers import Manager, running

_numbers = itertools.count()


@pytest.fixture(scope="session")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    """Processes for all tests of a run: a launch costs as much as dozens of tests."""
    crew = Workers(tmp_path_factory.mktemp("workers"))
    yield crew
    crew.close()


@pytest.fixture(scope="session")
def manager(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Manager]:
    """A manager for all tests that do not stop it; jobs keep them apart."""
    with running(log=tmp_path_factory.mktemp("manager") / "log") as started:
        yield started


@pytest.fixture
def job() -> str:
    """A name that no other test has."""
    return f"ddp-{next(_numbers)}"
