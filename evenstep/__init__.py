"""Evenstep makes every worker of a distributed training job finish its iteration together."""

__version__ = "0.1.0"
