"""A program that trains on Ray until a test stops it."""

import sys
from dataclasses import replace

from tests.simulator.engine.ray.training import QUICK, cluster_with, training


def main(how: str, address: str | None = None) -> None:
    settings = replace(QUICK, address=address)
    with training(cluster=cluster_with(10.0), settings=settings) as run:
        for progress in run.advance(10**6):
            if progress.updates == 3:
                print("running", flush=True)
                if how == "raise":
                    raise RuntimeError("as requested")
                if how == "finish":
                    return


if __name__ == "__main__":
    main(*sys.argv[1:])
