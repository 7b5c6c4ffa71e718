"""The dashboard: one live page that shows the jobs of run logs or of a manager.

Records flow one way: a source (a folder of run logs, or a manager) passes them to the jobs, a view
turns a job into small JSON, and a stream sends it to the page, which only draws.
"""
