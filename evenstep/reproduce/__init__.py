"""The paper's evaluation, experiment by experiment, with its figures beside ours.

`EXPERIMENTS` in `experiments/` is the registry; `run.py` runs some of them and keeps what came out,
`page.py` makes one page of it. An experiment is one file: adding one is that file, one line in the
registry, and one test.
"""
