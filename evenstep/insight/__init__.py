"""Insight: what a run lost and gained, as advice, a report, plots and a dashboard."""
