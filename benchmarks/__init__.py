"""Benchmarks: what was measured or simulated, next to the figures to reach."""
