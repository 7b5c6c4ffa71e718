"""Clusters: what computing and waiting would cost on machines that are not here.

A `Cluster` joins device curves with an environment (contention, noise, scheduled changes) and
tells, for any iteration and sizes, the batch processing times, and the optimum and the oracle
that a policy is measured against.
"""
