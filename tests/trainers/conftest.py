"""The worker processes that the tests of the trainers share."""

from collections.abc import Iterator

import pytest

from tests.distributed.workers import Workers


@pytest.fixture(scope="session")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    """Two processes for all tests of a run: importing a trainer takes longer than most tests."""
    folder = tmp_path_factory.mktemp("workers")
    started = Workers(folder, module="tests.trainers.worker", fewest=2)
    yield started
    started.close()
