"""The hand-over of samples between two partitions, as state machines without I/O and clock.

Begin with `protocol.py`.
"""
