"""The worker processes that these tests share."""

from tests.pytorch.conftest import workers

__all__ = ["workers"]
