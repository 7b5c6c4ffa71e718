"""Measures a worker's batch processing times, and the CPU and memory available to it."""
