"""Measuring: how long a worker's own work took, and what its machine leaves to it."""
