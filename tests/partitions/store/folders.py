"""Small partitions to test with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from evenstep.partitions.rules.partitioning import deal_by_class
from evenstep.partitions.store import Partition, create_partitions

NUM_SAMPLES = 60


def pictures() -> tuple[Any, Any]:
    """Pictures whose pixels are the number of the sample, and labels of six classes."""
    numbers = np.arange(NUM_SAMPLES)
    images = np.broadcast_to(numbers[:, None, None], (NUM_SAMPLES, 2, 3)).astype(np.float32)
    return images, numbers % 6


def three_partitions(folder: Path, quota: int | None = None) -> list[Path]:
    """Three partitions of 20 samples with two classes each."""
    folders = [folder / f"w{i}" for i in range(3)]
    data = pictures()
    create_partitions(folders, data, deal_by_class(data[1], 3), label="1", quota=quota)
    return folders


def content(partition: Partition) -> dict[int, int]:
    """What each sample's pixels say it is."""
    return {
        int(sample): int(partition[position][0].max())
        for position, sample in enumerate(partition.samples)
    }
