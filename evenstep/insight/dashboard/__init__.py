"""The dashboard: one page, live, that shows what the jobs behind some run logs or a manager do.

Records flow one way: a source (a folder of run logs, or a manager) hands them to the jobs, a view
makes small JSON of a job, and a stream sends it to the page, which only draws.
"""
