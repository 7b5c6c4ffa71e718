"""``python -m reproduction``: runs the paper's experiments."""

import sys

from evenstep.cli.main import exit_code_of
from reproduction import EXTRAS


def main() -> int:
    """Run the command; packages that it lacks are an error in one line."""
    from reproduction.command import main

    return main()


if __name__ == "__main__":
    sys.exit(exit_code_of(main, "reproduction", EXTRAS))
