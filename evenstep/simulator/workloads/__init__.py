"""Workloads: models and data sets for the demo, the comparisons and the benchmarks."""

NUM_TRAINING = 1536
"""Number of training digits: a multiple of most totals. The other 261 are for testing."""
