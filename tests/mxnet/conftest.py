"""Loads MXNet before the tests: it is older than the warnings that importing it gives."""

import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import mxnet  # noqa: F401
