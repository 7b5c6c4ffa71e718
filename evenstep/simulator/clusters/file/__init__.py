"""Cluster files: a cluster described in TOML that anyone can write (docs/cluster_file.md)."""

from evenstep.simulator.clusters.file.load import load_cluster

__all__ = ["load_cluster"]
