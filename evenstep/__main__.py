"""Lets ``python -m evenstep`` be the ``evenstep`` command."""

import sys

from evenstep.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
