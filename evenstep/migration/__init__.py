"""Migrations between machines: agents that speak Thrift, and the manager that drives them.

`docs/partitions.md` describes how to run them, and `agent.thrift` what they say. The protocol is
that of `evenstep.partition.hand_over`, and what is on disk that of `evenstep.partition_store`.
"""

from evenstep.migration.driver import Migration
from evenstep.migration.remote import RemoteAgent

__all__ = ["Migration", "RemoteAgent"]
