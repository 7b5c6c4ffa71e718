"""The worker processes that the training loops share."""

from collections.abc import Iterator

import pytest

from tests.distributed.workers import Workers


@pytest.fixture(scope="session")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    """Processes for all tests of a run: a launch costs as much as dozens of tests."""
    started = Workers(tmp_path_factory.mktemp("workers"), fewest=2)
    yield started
    started.close()
