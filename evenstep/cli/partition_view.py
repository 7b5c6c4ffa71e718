"""The output of `evenstep partition`: contents, results of checks, and migrations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from evenstep.cli.printing import print_json, say
from evenstep.partitions.handover.task import Task
from evenstep.partitions.store import Partition, Verification


def print_partitions(folders: Sequence[Path], as_json: bool) -> None:
    """Print the contents of partitions, a line each."""
    described = [_described(folder) for folder in folders]
    if as_json:
        print_json(described)
        return
    width = max(len(one["name"]) for one in described)
    for one in described:
        parts = [f"{one['samples']} samples", f"{one['bytes']} bytes"]
        if one["quota"] is not None:
            parts[-1] += f" of {one['quota']}"
        if one["classes"]:
            classes = ", ".join(f"{label}: {number}" for label, number in one["classes"].items())
            parts.append(f"classes {classes}")
        if one["open_hand_overs"]:
            parts.append(f"open hand-overs {', '.join(one['open_hand_overs'])}")
        say([f"{one['name']:{width}}  {'; '.join(parts)}"], hanging=width + 2)


def print_verification(found: Verification, folders: Sequence[Path], as_json: bool) -> None:
    """Print the problems, or that there are none."""
    if as_json:
        print_json({"folders": [str(folder) for folder in folders], **asdict(found)})
        return
    whole = f"{len(folders)} partitions with {found.num_samples} samples are whole"
    say(found.problems or [whole])
    if not found.complete:
        missing = f"{found.num_missing} samples are in others, or lost"
        say([f"these are not all partitions of the data set: {missing}"])
    if found.open_hand_overs:
        say([f"open hand-overs: {', '.join(found.open_hand_overs)}"])


def print_migration(tasks: Sequence[Task], sizes: dict[str, int], dry: bool, as_json: bool) -> None:
    """Print the hand-overs of a migration: giver, receiver, samples and outcome."""
    described = [_hand_over(task, dry) for task in tasks]
    if as_json:
        print_json({"hand_overs": described, "sizes": sizes})
        return
    for one in described:
        reason = f": {one['reason']}" if one["reason"] else ""
        who = f"{one['giver']} to {one['receiver']}"
        say([f"{who}: {one['samples']} samples, {one['outcome']}{reason}"], hanging=2)
    moved = sum(one["samples"] for one in described if one["outcome"] in ("done", "planned"))
    print(f"{moved} samples {'would move' if dry else 'moved'}")


def _described(folder: Path) -> dict[str, Any]:
    partition = Partition.open(folder)
    index, labels = partition.index, partition.labels
    classes, counts = np.unique([] if labels is None else labels, return_counts=True)
    return {
        "folder": str(folder),
        "name": partition.name,
        "samples": len(partition),
        "classes": dict(zip(map(int, classes), map(int, counts), strict=True)),
        "bytes": partition.num_bytes,
        "quota": index.quota,
        "version": index.version,
        "blocks": len(index.blocks),
        "layout": index.dataset.layout,
        "open_hand_overs": sorted(index.open_hand_overs),
    }


def _hand_over(task: Task, dry: bool) -> dict[str, Any]:
    return {
        "hand_over": task.hand_over,
        "giver": task.giver,
        "receiver": task.receiver,
        "samples": len(task.samples),
        "outcome": "planned" if dry else task.outcome,
        "reason": task.reason,
    }
