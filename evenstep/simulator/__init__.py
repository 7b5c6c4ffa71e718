"""Simulator: clusters, schemes and workloads, in virtual time, on Ray, or as real load."""
