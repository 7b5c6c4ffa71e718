"""A run in network namespaces: four workers really train, each behind its own link.

Links, processes, parameter server and gradients are real; how long workers compute is emulated.
`hub` runs it, `run` starts that as a process, `results` makes tables, plots and claims of it.
"""
