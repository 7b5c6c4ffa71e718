"""What every training needs, whatever its framework: plans, reports, the run log, and a loop.

An adapter answers three questions on top of it: how the next batch gets its planned size, where
the gradient is weighted, and when the batch processing time starts and stops.
"""
