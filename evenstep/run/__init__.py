"""Balances an unmodified script: ``torchrun ... -m evenstep.run train.py ARGS``.

`evenstep run` starts torchrun with it. Read the code in this order: `script` runs the script as
Python would, `watch` finds the loader that it trains on, `checks` says what cannot be balanced,
`balancing` balances it, and `passes` hands out the batches.
"""
