"""``python -m reproduction``: runs the paper's experiments."""

import sys

from reproduction.command import main

if __name__ == "__main__":
    sys.exit(main())
