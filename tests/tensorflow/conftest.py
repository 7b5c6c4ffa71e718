"""The worker processes that the tests of the TensorFlow adapter share, and a manager for them."""

from collections.abc import Iterator

import pytest

from tests.manager.fixtures import job as job
from tests.manager.fixtures import manager as manager
from tests.tensorflow.cluster import Cluster


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Processes for all tests of a run: importing TensorFlow takes longer than most of them."""
    workers = Cluster(tmp_path_factory.mktemp("cluster"))
    yield workers
    workers.close()
