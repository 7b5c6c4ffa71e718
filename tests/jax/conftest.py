"""The worker processes that the tests of the JAX adapter share, and a manager for them."""

from collections.abc import Iterator

import pytest

from tests.distributed.workers import Workers
from tests.manager.fixtures import job as job
from tests.manager.fixtures import manager as manager


@pytest.fixture(scope="session", autouse=True)
def on_the_cpu() -> Iterator[None]:
    """Make JAX use the CPU, here and in all processes, even if there are other devices."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAX_PLATFORMS", "cpu")
        yield


@pytest.fixture(scope="session")
def workers(on_the_cpu: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    """Processes for all tests of a run: a launch costs as much as dozens of tests."""
    workers = Workers(tmp_path_factory.mktemp("workers"), "tests.jax.worker", fewest=2)
    yield workers
    workers.close()
