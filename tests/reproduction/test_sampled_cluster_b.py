"""Cluster-B on machines that are drawn from the full trace."""

import gzip

import numpy as np
import pytest

from evenstep.errors import DataFileError
from reproduction.sampled_cluster_b import CAPACITIES, draw_cluster

SLOTS = [f"{what}_{slot:02}" for what in ("cpu", "mem") for slot in range(12)]


@pytest.fixture
def usage(tmp_path):
    """Write some machines of every class, with growing usage."""

    def write(count):
        lines = [",".join(["machine_id", "platform", "cpu_capacity", "mem_capacity", *SLOTS])]
        for cpu, memory in CAPACITIES.values():
            for i in range(count):
                used = [0.9 * cpu * i / count] * 12 + [0.5 * memory] * 12
                lines.append(",".join(map(str, ["1", "P0", cpu, memory, *used])))
        path = tmp_path / "machine_usage_hour.csv.gz"
        path.write_bytes(gzip.compress("\n".join(lines).encode()))
        return path

    return write


def left(cluster):
    return cluster.conditions(0, 0.0).cpu


def test_every_seed_has_other_machines_and_the_same_one_the_same(usage):
    path = usage(40)
    first, again, other = (left(draw_cluster(path, seed)) for seed in (0, 0, 1))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    assert len(first) == 32


def test_no_machine_is_drawn_twice(usage):
    drawn = left(draw_cluster(usage(17), seed=3))
    assert len(set(drawn[:17].round(6))) == 17


def test_too_few_machines_are_refused(usage):
    with pytest.raises(DataFileError, match=r"must have 17 machines like a m4\.2xlarge, got 16"):
        draw_cluster(usage(16), seed=0)


@pytest.mark.parametrize("text", [b"a,b\n1,2\n", b"cpu_capacity,mem_capacity\n0.5\n"])
def test_other_files_are_refused(tmp_path, text):
    path = tmp_path / "machine_usage_hour.csv.gz"
    path.write_bytes(gzip.compress(text))
    with pytest.raises(DataFileError, match=r"machine_usage_hour\.csv\.gz: .*\busage\b"):
        draw_cluster(path, seed=0)
