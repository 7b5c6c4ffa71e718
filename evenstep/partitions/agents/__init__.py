"""Migrations between machines: agents that speak Thrift, and the manager that drives them.

`docs/partitions.md` describes how to run them, and `agent.thrift` their messages. The protocol is
that of `evenstep.partitions.handover`. `python -m evenstep.partitions.agents` runs an agent or a
migration for another program. Nothing is imported here: `settings` does without Thrift.
"""
