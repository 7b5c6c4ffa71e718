"""The worker processes that the tests of the PyTorch adapter share, and a manager for them."""

from collections.abc import Iterator

import pytest

from tests.distributed.workers import Workers
from tests.manager.fixtures import job as job
from tests.manager.fixtures import manager as manager


@pytest.fixture(scope="session")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    """Processes for all tests of a run: a launch costs as much as dozens of tests."""
    started = Workers(tmp_path_factory.mktemp("workers"))
    yield started
    started.close()
