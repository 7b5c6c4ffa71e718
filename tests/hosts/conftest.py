"""The hosts of a test, which are gone when it ends."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.hosts.cluster import NAMES, Cluster
from tests.hosts.network import network, obstacle


@pytest.fixture(scope="session")
def possible() -> None:
    """Skip the tests where no hosts can be made."""
    if reason := obstacle():
        pytest.skip(reason)


@pytest.fixture
def cluster(possible: None, tmp_path: Path) -> Iterator[Cluster]:
    with ExitStack() as stack:
        yield Cluster(tmp_path, stack.enter_context(network(tmp_path, *NAMES, "m")), stack)
