"""The cluster files in the documentation and the examples are valid."""

import re
from pathlib import Path

import numpy as np
import pytest

from evenstep.errors import ClusterFileError
from evenstep.simulator.clusters.file import load_cluster

HOME = Path(__file__).parents[3]
DOC = (HOME / "docs" / "cluster_file.md").read_text(encoding="utf-8")
EXAMPLES = sorted((HOME / "examples" / "clusters").glob("*.toml"))


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", DOC, re.DOTALL | re.MULTILINE)


def write_tables(folder):
    """Write the documented CSV files: each names itself in its first line."""
    for text in blocks("csv"):
        name = text.partition("\n")[0].removeprefix("# ")
        (folder / name).write_text(text, encoding="utf-8")


def check_runs(cluster):
    """Evaluate a cluster at the beginning and at the end of a run."""
    for iteration in (0, cluster.iterations - 1):
        at = cluster.conditions(iteration, now=0.0)
        optimum = cluster.optimum(at)
        assert optimum.sum() == cluster.total
        assert np.all(cluster.times(optimum, at) > 0)


@pytest.mark.parametrize("text", blocks("toml"))
def test_every_documented_file_loads_and_runs(text, tmp_path):
    write_tables(tmp_path)
    (tmp_path / "cluster.toml").write_text(text, encoding="utf-8")
    check_runs(load_cluster(tmp_path / "cluster.toml"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_loads_and_runs(path):
    check_runs(load_cluster(path))


def test_there_are_examples_to_test():
    assert (len(blocks("toml")), len(blocks("csv"))) == (2, 2)
    assert [path.stem for path in EXAMPLES] == ["mixed_gpus", "shared_cpus"]


def test_the_documented_messages_are_real(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("gpu.csv").write_text("batch_size,seconds\n1,0.1\n2,0.1\n3,0.1\n4,0.1\n5,0.1\n6,-0.2\n")
    Path("cluster.toml").write_text(
        "samples_per_worker = 32\n\n"
        '[[workers]]\nname = "a"\nsped = 60.0\nspeed = 60.0\n'
        '[[workers]]\nname = "b"\nspeed = -3.0\n'
        '[[workers]]\nname = "c"\ntable = "gpu.csv"\n'
    )
    with pytest.raises(ClusterFileError) as caught:
        load_cluster("cluster.toml")
    assert [str(caught.value) + "\n"] == blocks("text")
