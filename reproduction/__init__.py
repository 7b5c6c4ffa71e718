"""The paper's evaluation, experiment by experiment, with its figures next to ours.

`python -m reproduction` runs it from a checkout of the repository; it is not part of the package.
`EXPERIMENTS` in `experiments/` is the registry; `run.py` runs some of them and keeps the results,
`page.py` makes one page of them. An experiment is one file: adding one is that file, one line in
the registry, and one test.
"""

EXTRAS = "demo,manager,arima"
"""The extras with all packages of the experiments."""
