"""Simulator: runs schemes and workloads on clusters in virtual time or on Ray; makes real load."""
