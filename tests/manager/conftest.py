"""The fixtures `manager` and `job` for the tests of this folder."""

from tests.manager.fixtures import job, manager

__all__ = ["job", "manager"]
