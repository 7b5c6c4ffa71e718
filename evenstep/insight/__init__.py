"""Insight: the losses and gains of a run, as advice, a report, plots and a dashboard."""
