"""Benchmarks: measured or simulated figures, next to their targets."""
