"""Runs a policy on workers behind links, and prints the result.

python -m reproduction.netns POLICY DELAY ITERATIONS CHANGE_AT
"""

from __future__ import annotations

import json
import sys

from evenstep.errors import EvenstepError
from reproduction.netns.isolation import end_with_parent, leave_network
from reproduction.netns.link import check_commands


def main() -> None:
    policy, delay, iterations, change_at = sys.argv[1:]
    try:
        end_with_parent()
        leave_network()
        check_commands()
        # Loads PyTorch, which takes seconds; saved if links cannot be made.
        from evenstep.simulator.engine.simulation import Setup
        from reproduction.netns.hub import follow

        setup = Setup(policy, delay=int(delay))
        print(json.dumps(follow(setup, int(iterations), int(change_at))))
    except EvenstepError as problem:
        sys.exit(str(problem))


if __name__ == "__main__":
    main()
