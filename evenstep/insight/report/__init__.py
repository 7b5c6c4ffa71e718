"""The report of a run: its figures, its sentences, and one HTML page."""
