r"""Make, show, check and migrate partitions: the samples of a data set, in a folder per worker.

A folder with several partitions stands for all of them.

actions:
  create    deal a data set to workers, mixed or by class
  show      show the contents of partitions
  verify    check files and checksums, and that no sample is lost or doubled;
            exit code 1 if there is a problem
  migrate   move samples between partitions, so that they match batch sizes:
            folders on this machine, or --agents on any; exit code 1 if some
            samples could not be moved
  serve     run the agent of a partition, which sends samples to other agents

examples:
  evenstep partition create data --workers 5 --digits --by-class
  evenstep partition create data --workers 4 --npz train.npz --label y
  evenstep partition show data
  evenstep partition verify data/worker-0 data/worker-1 --json
  evenstep partition migrate data --batch-sizes 64,96,128,160,192 --dry-run
  evenstep partition migrate data --leaving worker-3
  evenstep partition serve data/worker-0 --bandwidth 50000000
  evenstep partition migrate --agents node0:7414,node1:7414 \
      --batch-sizes 64,192 --token-file token --tls-ca ca.pem
"""

from __future__ import annotations

import argparse
import uuid
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evenstep.cli.arguments import count, whole
from evenstep.cli.partition_agents import (
    add_agents_arguments,
    add_serve_arguments,
    migrate_between_agents,
    parse_batch_sizes,
    serve_partition,
)
from evenstep.cli.partition_view import print_migration, print_partitions, print_verification
from evenstep.cli.printing import busy
from evenstep.errors import InvalidSetting
from evenstep.partitions.handover.task import CHUNK_SIZE
from evenstep.partitions.rules.partitioning import deal_by_class, deal_mixed
from evenstep.partitions.store import (
    Partition,
    carry_out,
    create_partitions,
    finish,
    plan_tasks,
    settle_lost,
    verify,
)
from evenstep.partitions.store.blocks import BLOCKS
from evenstep.partitions.store.index import FILE


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    _add_create(actions.add_parser("create", help="deal a data set to workers"))
    _add_migrate(actions.add_parser("migrate", help="move samples to match batch sizes"))
    add_serve_arguments(actions.add_parser("serve", help="run the agent of a partition"))
    for action, words in (("show", "show their contents"), ("verify", "check for damage")):
        _add_folders(actions.add_parser(action, help=words))


def run(args: argparse.Namespace) -> int:
    run_action = {
        "create": _create,
        "show": _show,
        "verify": _verify,
        "migrate": _migrate,
        "serve": serve_partition,
    }
    return run_action[args.action](args)


def _add_folders(parser: argparse.ArgumentParser, at_least: str = "+") -> None:
    parser.add_argument("folders", nargs=at_least, metavar="DIR", type=Path, help="partitions")
    parser.add_argument("--json", action="store_true", help="print it as JSON")


def _add_create(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="DIR", type=Path, help="gets a folder per worker")
    parser.add_argument(
        "--workers", type=count, required=True, metavar="N", help="number of workers"
    )
    data = parser.add_mutually_exclusive_group(required=True)
    data.add_argument("--npz", metavar="FILE", type=Path, help="arrays with a row per sample")
    data.add_argument(
        "--npy", nargs="+", metavar="FILE", type=Path, help="the same, a file per array"
    )
    data.add_argument("--digits", action="store_true", help="scikit-learn's 1797 digits")
    parser.add_argument(
        "--label", help="the array with the classes; of several files, the last by default"
    )
    parser.add_argument("--by-class", action="store_true", help="deal whole classes to workers")
    parser.add_argument(
        "--seed", type=whole, default=0, metavar="S", help="for dealing mixed, default: 0"
    )
    parser.add_argument("--quota", type=count, metavar="BYTES", help="for the rows of each worker")
    parser.add_argument("--json", action="store_true", help="print it as JSON")


def _add_migrate(parser: argparse.ArgumentParser) -> None:
    _add_folders(parser, "*")
    parser.add_argument(
        "--batch-sizes", metavar="X,...", help="in the order of the folders or agents"
    )
    parser.add_argument(
        "--leaving",
        type=_names,
        default=(),
        metavar="NAME,...",
        help="partitions to empty into the others; without --batch-sizes nothing else moves",
    )
    parser.add_argument(
        "--lost",
        type=_names,
        default=(),
        metavar="NAME,...",
        help="partitions whose disks are lost: their open hand-overs are ended first",
    )
    parser.add_argument(
        "--minimum", type=count, default=1, metavar="N", help="samples that each one keeps; 1"
    )
    parser.add_argument(
        "--seed", type=whole, default=0, metavar="S", help="which samples move, default: 0"
    )
    parser.add_argument("--chunk-size", type=count, metavar="N", help="samples per message")
    parser.add_argument("--dry-run", action="store_true", help="only print what would move")
    parser.add_argument("--compact", action="store_true", help="free the space of moved samples")
    add_agents_arguments(parser)


def _create(args: argparse.Namespace) -> int:
    digits = len(str(args.workers - 1))
    folders = [args.folder / f"worker-{worker:0{digits}d}" for worker in range(args.workers)]
    with busy(f"writing {args.workers} partitions"):
        data = arrays_of(args)
        label = label_of(args, data)
        if args.by_class:
            if label is None:
                raise InvalidSetting("dealing by class needs the array with the classes: --label")
            dealt = deal_by_class(data[label], args.workers)
        else:
            dealt = deal_mixed(len(next(iter(data.values()))), args.workers, args.seed)
        create_partitions(folders, data, dealt, label, args.quota)
    print_partitions(folders, args.json)
    return 0


def _show(args: argparse.Namespace) -> int:
    print_partitions(_partitions(args.folders), args.json)
    return 0


def _verify(args: argparse.Namespace) -> int:
    folders = _partitions(args.folders)
    with busy(f"verifying {len(folders)} partitions"):
        found = verify(folders)
    print_verification(found, folders, args.json)
    return 1 if found.problems else 0


def _migrate(args: argparse.Namespace) -> int:
    if bool(args.folders) == bool(args.agents):
        raise InvalidSetting("migrate needs either folders or --agents, got both or none")
    if not (args.batch_sizes or args.leaving or args.lost):
        raise InvalidSetting("migrate needs --batch-sizes, --leaving or --lost, got none of them")
    if args.agents:
        return migrate_between_agents(args)
    folders = _partitions(args.folders)
    sizes = parse_batch_sizes(args.batch_sizes, len(folders))
    with ExitStack() as stack:
        stack.enter_context(busy(f"migrating between {len(folders)} partitions"))
        partitions = [
            stack.enter_context(Partition.open(folder, write=not args.dry_run))
            for folder in folders
        ]
        if not args.dry_run:
            settle_lost(partitions, args.lost)
        before = () if args.dry_run else finish(partitions)
        migration = uuid.uuid4().hex[:12]
        chunk_size = args.chunk_size or CHUNK_SIZE
        tasks = plan_tasks(
            partitions, sizes, migration, args.minimum, args.seed, chunk_size, args.leaving
        )
        if not args.dry_run:
            tasks = carry_out(partitions, tasks)
            if args.compact:
                for partition in partitions:
                    partition.compact()
        lengths = {partition.name: len(partition) for partition in partitions}
    print_migration((*before, *tasks), lengths, args.dry_run, args.json)
    return 1 if any(task.phase == "failed" for task in tasks) else 0


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))


def _partitions(folders: list[Path]) -> list[Path]:
    """Return the folders of partitions; a folder with several stands for them."""
    found: list[Path] = []
    for folder in folders:
        inner = sorted(path.parent for path in folder.glob(f"*/{BLOCKS}"))
        found += inner if inner and not (folder / FILE).exists() else [folder]
    return found


Arrays = dict[str, NDArray[Any]]


def arrays_of(args: argparse.Namespace) -> Arrays:
    """Return the arrays of the arguments."""
    if args.digits:
        return _digits()
    if args.npz is not None:
        return _load(args.npz, archive=True)
    arrays: Arrays = {}
    for path in args.npy:
        if path.stem in arrays:
            raise InvalidSetting(f"files must have different names, got {path.stem!r} twice")
        arrays |= _load(path, archive=False)
    return arrays


def label_of(args: argparse.Namespace, arrays: Arrays) -> str | None:
    """Return the name of the array with the classes: the given one, or the last of several."""
    if args.label is not None:
        if args.label not in arrays:
            raise InvalidSetting(f"label must be one of {', '.join(arrays)}, got {args.label!r}")
        return str(args.label)
    last = list(arrays)[-1]
    if len(arrays) == 1 or args.npz is not None:
        return None
    return last if arrays[last].ndim == 1 and arrays[last].dtype.kind in "biu" else None


def _digits() -> Arrays:
    from sklearn.datasets import load_digits

    digits = load_digits()
    return {"x": digits.images.astype(np.float32), "y": digits.target.astype(np.int64)}


def _load(path: Path, archive: bool) -> Arrays:
    kind = "an .npz archive" if archive else "an .npy file"
    try:
        loaded = np.load(path, allow_pickle=False)
        if archive != isinstance(loaded, np.lib.npyio.NpzFile):
            raise ValueError("it is the other kind")
        return dict(loaded) if archive else {path.stem: loaded}
    except OSError:
        raise
    except Exception as error:
        # For a file of another format, the readers of zip and npy raise almost any error.
        raise InvalidSetting(f"{path} must be {kind} of numbers: {error}") from error
