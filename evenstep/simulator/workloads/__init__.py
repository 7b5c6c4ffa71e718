"""Workloads: models and data sets of the demo, the comparisons and the benchmarks."""

NUM_TRAINING = 1536
"""Digits to train on: a multiple of most totals. The other 261 are for testing."""
