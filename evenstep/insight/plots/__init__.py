"""The plots of a run: batch sizes, times, waiting, usage and a timeline."""
