"""One Ray for all tests of this folder, which are skipped if it is not installed."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

import pytest

FOREIGN = "ignore::DeprecationWarning:ray.data.context"
"""Ray Data warns of its own default settings."""

MISSING = importlib.util.find_spec("ray") is None
collect_ignore = ["balancing.py", "loops.py", "restarting.py", "streams.py"] if MISSING else []
"""What the workers run imports Ray, and pytest would import it for its doctests."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/trainers/ray_train/" in item.path.as_posix():
            item.add_marker("ray")
            item.add_marker(pytest.mark.filterwarnings(FOREIGN))
            if MISSING:
                item.add_marker(
                    pytest.mark.skip(reason="ray is not installed: scripts/install ray")
                )


@pytest.fixture(scope="session")
def local_ray() -> Iterator[None]:
    """Start a Ray for two workers and what reads data for them."""
    from tests.trainers.ray_train.local import started

    with started(num_cpus=4):
        yield
