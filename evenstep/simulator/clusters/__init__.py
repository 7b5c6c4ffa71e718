"""Clusters: models of machines that give the batch processing times of their workers.

A `Cluster` combines device curves with an environment (contention, noise, scheduled changes). For
any iteration and batch sizes it returns the batch processing times, and the optimum and the oracle
that policies are measured against.
"""
