"""Printing of results, without any package that an extra brings."""

from __future__ import annotations

import json
import sys


def print_json(value: object, allow_nan: bool = True) -> None:
    """Print a value as indented JSON; without `allow_nan`, NaN raises ValueError."""
    json.dump(value, sys.stdout, indent=2, allow_nan=allow_nan)
    print()
