"""The training loop that all framework adapters share: plans, reports, checkpoints, the run log.

An adapter adds three things: how the next batch gets its planned size, where the gradient is
weighted, and when the batch processing time starts and stops.
"""
