"""Balance an unmodified training script: no line of it changes.

In place of `torchrun OPTIONS train.py ARGS`. All options of torchrun are passed on to it, such as
--nproc-per-node, --nnodes, --standalone and --rdzv-endpoint. The script must train a
DistributedDataParallel model on a DataLoader with a DistributedSampler. Worker 0 prints what was
done; a script that cannot be balanced runs as it would without. EVENSTEP_POLICY, EVENSTEP_LOG and
so on set the same options as --policy, --log and so on, which win.

examples:
  evenstep run --standalone --nproc-per-node 2 train.py --epochs 10
  evenstep run --nproc-per-node 2 --observe train.py
  torchrun --nproc-per-node 2 -m evenstep.run --run-log run.jsonl train.py
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from evenstep.run.options import add_options


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "evenstep run [OPTIONS OF TORCHRUN] [OPTIONS] train.py ARGS"
    add_options(parser)


def parse(parser: argparse.ArgumentParser, argv: Sequence[str]) -> argparse.Namespace:
    """Show the help if it is asked for; torchrun's own parser knows where the script begins."""
    if not argv or argv[0] in ("-h", "--help"):
        parser.parse_args(["--help"])
    return argparse.Namespace(argv=list(argv))


def run(args: argparse.Namespace) -> int:
    # It loads torch, which takes a while.
    from evenstep.run.launch import launch

    return launch(args.argv)
