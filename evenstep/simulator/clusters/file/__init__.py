"""Cluster files: clusters described in TOML by users (docs/cluster_file.md)."""

from evenstep.simulator.clusters.file.load import load_cluster

__all__ = ["load_cluster"]
