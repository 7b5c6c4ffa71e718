"""One Ray for all tests of this folder, which are skipped if it is not installed."""

import importlib.util

import pytest


def pytest_collection_modifyitems(items):
    missing = importlib.util.find_spec("ray") is None
    for item in items:
        if "tests/simulator/engine/ray/" in item.path.as_posix():
            item.add_marker("ray")
            if missing:
                item.add_marker(
                    pytest.mark.skip(reason="ray is not installed: scripts/install ray")
                )


@pytest.fixture(scope="session")
def local_ray():
    """Start a Ray for up to 4 workers at a time; runs use it and leave it running."""
    from evenstep.simulator.ray_engine.session import ray_session

    with ray_session(None, num_cpus=4):
        yield
