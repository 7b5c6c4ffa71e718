"""Lets ``python -m evenstep.run train.py ARGS`` run a script in one worker."""

import sys

from evenstep.run.script import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
