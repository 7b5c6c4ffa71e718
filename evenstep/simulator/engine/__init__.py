"""Engines: run a scheme on a cluster, in virtual time."""
