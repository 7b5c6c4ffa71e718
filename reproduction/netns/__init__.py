"""A linked run: four workers train for real, each behind a line of its own.

Lines, processes, parameter server and gradients are real; how long workers compute is emulated.
`hub` runs it in network namespaces of its own, `showing` is what is seen of it.
"""
