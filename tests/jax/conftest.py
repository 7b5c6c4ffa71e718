"""The worker processes that the tests of the JAX adapter share, and a manager for them."""

import itertools
from collections.abc import Iterator

import pytest

from tests.distributed.workers import Workers
from tests.manager.managers import Manager, running

_numbers = itertools.count()


@pytest.fixture(scope="session", autouse=True)
def on_the_cpu() -> Iterator[None]:
    """Have JAX use the CPU, here and in all processes, whatever else there is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAX_PLATFORMS", "cpu")
        yield


@pytest.fixture(scope="session")
def workers(on_the_cpu: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    """Processes for all tests of a run: a launch costs as much as dozens of tests."""
    crew = Workers(tmp_path_factory.mktemp("workers"), "tests.jax.worker", fewest=2)
    yield crew
    crew.close()


@pytest.fixture(scope="session")
def manager(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Manager]:
    """A manager for all tests; jobs keep them apart."""
    with running(log=tmp_path_factory.mktemp("manager") / "log") as started:
        yield started


@pytest.fixture
def job() -> str:
    """A name that no other test has."""
    return f"jax-{next(_numbers)}"
