"""The worker processes that the tests of the TensorFlow adapter share, and a manager for them."""

import itertools
from collections.abc import Iterator

import pytest

from tests.manager.managers import Manager, running
from tests.tensorflow.cluster import Cluster

_numbers = itertools.count()


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Processes for all tests of a run: importing TensorFlow takes longer than most of them."""
    workers = Cluster(tmp_path_factory.mktemp("cluster"))
    yield workers
    workers.close()


@pytest.fixture(scope="session")
def manager(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Manager]:
    """A manager for all tests; jobs keep them apart."""
    with running(log=tmp_path_factory.mktemp("manager") / "log") as started:
        yield started


@pytest.fixture
def job() -> str:
    """A name that no other test has."""
    return f"tf-{next(_numbers)}"
