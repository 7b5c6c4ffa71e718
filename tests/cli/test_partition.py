"""``evenstep partition``: making, showing, checking and migrating partitions."""

import argparse
import json
import re

import numpy as np
import pytest

from evenstep.cli.main import main
from evenstep.cli.partition_agents import add_serve_arguments
from evenstep.partitions.agents.settings import BANDWIDTH
from evenstep.partitions.store import Partition


@pytest.fixture
def partition(capsys):
    """Run the command; return its exit code and what it printed, parsed where it is JSON."""

    def run(*argv):
        code = main(["partition", *map(str, argv)])
        out, err = capsys.readouterr()
        return code, (json.loads(out) if "--json" in argv else out + err)

    return run


@pytest.fixture
def archive(tmp_path):
    path = tmp_path / "train.npz"
    np.savez(path, x=np.arange(24.0).reshape(12, 2), y=np.arange(12) % 4)
    return path


@pytest.fixture
def folder(tmp_path, archive, partition):
    """Two partitions with two classes of three samples each."""
    folder = tmp_path / "data"
    code, _ = partition(
        "create", folder, "--workers", 2, "--npz", archive, "--label", "y", "--by-class"
    )
    assert code == 0
    return folder


def test_create_deals_and_says_what(partition, archive, tmp_path):
    code, printed = partition(
        "create", tmp_path / "d", "--workers", 2, "--npz", archive, "--label", "y", "--by-class"
    )
    assert (code, printed.splitlines()) == (
        0,
        [
            "worker-0  6 samples; 216 bytes; classes 0: 3, 1: 3",
            "worker-1  6 samples; 216 bytes; classes 2: 3, 3: 3",
        ],
    )
    sample = Partition.open(tmp_path / "d" / "worker-0")[1]
    assert (sample["x"].tolist(), sample["y"]) == ([2.0, 3.0], 1)


def test_create_mixed_depends_on_the_seed_alone(partition, archive, tmp_path):
    def dealt(name, seed):
        partition("create", tmp_path / name, "--workers", 3, "--npz", archive, "--seed", seed)
        return [Partition.open(tmp_path / name / f"worker-{w}").samples.tolist() for w in range(3)]

    first = dealt("a", 1)
    assert sorted(first[0] + first[1] + first[2]) == list(range(12))
    assert dealt("b", 1) == first
    assert dealt("c", 2) != first


def test_create_from_a_pair_of_files_takes_the_last_as_classes(partition, tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((6, 3), dtype=np.float32))
    np.save(tmp_path / "y.npy", np.arange(6) % 2)
    files = [tmp_path / "x.npy", tmp_path / "y.npy"]
    _, shown = partition("create", tmp_path / "d", "--workers", 2, "--npy", *files, "--json")
    assert [one["layout"] for one in shown] == ["dict [('x', '<f4', (3,)), ('y', '<i8')]"] * 2
    assert [sum(one["classes"].values()) for one in shown] == [3, 3]


def test_create_from_the_digits_gives_two_classes_each(partition, tmp_path):
    _, shown = partition("create", tmp_path, "--workers", 5, "--digits", "--by-class", "--json")
    classes = [sorted(map(int, one["classes"])) for one in shown]
    assert classes == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]
    assert sum(one["samples"] for one in shown) == 1797


def test_show_gives_every_figure_as_json(partition, folder):
    code, (first, _) = partition("show", folder, "--json")
    assert code == 0
    assert first == {
        "folder": str(folder / "worker-0"),
        "name": "worker-0",
        "samples": 6,
        "classes": {"0": 3, "1": 3},
        "bytes": 216,
        "quota": None,
        "version": 0,
        "blocks": 1,
        "layout": "dict [('x', '<f8', (2,)), ('y', '<i8')]",
        "open_hand_overs": [],
    }


def test_verify_finds_nothing_where_nothing_is_wrong(partition, folder):
    assert partition("verify", folder) == (0, "2 partitions with 12 samples are whole\n")
    code, printed = partition("verify", folder / "worker-0")
    assert code == 0
    assert "not all partitions" in printed


def test_verify_says_what_is_wrong_and_fails(partition, folder):
    path = folder / "worker-1" / "blocks" / "block-00000000.npy"
    octets = bytearray(path.read_bytes())
    octets[-1] ^= 4
    path.write_bytes(octets)
    code, printed = partition("verify", folder)
    assert (code, printed) == (1, f"{path}: sample 11 must fit the checksum\n")
    code, found = partition("verify", folder, "--json")
    assert (code, found["problems"]) == (1, [f"{path}: sample 11 must fit the checksum"])
    (folder / "worker-0" / "index.npz").write_bytes(b"nonsense")
    code, printed = partition("verify", folder)
    assert code == 1
    assert re.search(r"worker-0/index\.npz: .*\bindex\b.*\bdamaged\b", printed)
    code, printed = partition("show", folder)
    assert code == 2
    assert "worker-0/index.npz" in printed


def test_migrate_moves_what_the_dry_run_said(partition, folder):
    said = partition("migrate", folder, "--batch-sizes", "1,2", "--dry-run")
    assert said == (0, "worker-0 to worker-1: 2 samples, planned\n2 samples would move\n")
    assert partition("verify", folder)[0] == 0
    done = partition("migrate", folder, "--batch-sizes", "1,2", "--compact")
    assert done == (0, "worker-0 to worker-1: 2 samples, done\n2 samples moved\n")
    _, shown = partition("show", folder, "--json")
    assert [one["classes"] for one in shown] == [
        {"0": 2, "1": 2},
        {"0": 1, "1": 1, "2": 3, "3": 3},
    ]
    assert [(one["bytes"], one["blocks"]) for one in shown] == [(4 * 36, 1), (8 * 36, 1)]
    assert partition("verify", folder)[0] == 0
    assert partition("migrate", folder, "--batch-sizes", "1,2") == (0, "0 samples moved\n")


def test_a_migration_that_does_not_fit_fails_and_changes_nothing(partition, archive, tmp_path):
    folder = tmp_path / "tight"
    partition("create", folder, "--workers", 2, "--npz", archive, "--quota", 216)
    code, result = partition("migrate", folder, "--batch-sizes", "1,3", "--json")
    assert (code, result["sizes"]) == (1, {"worker-0": 6, "worker-1": 6})
    (one,) = result["hand_overs"]
    assert one["outcome"] == "failed"
    assert re.fullmatch(r"worker-1 refused: 108 bytes .*quota.* 0", one["reason"])


@pytest.mark.parametrize(
    "argv, wrong",
    [
        (["create", "DATA", "--workers", 2, "--npz", "FILE"], "there is a partition already"),
        (["create", "NEW", "--workers", 2, "--npz", "NEW"], "No such file or directory"),
        (["create", "NEW", "--workers", 99, "--npz", "FILE"], "must be 1 to 12, got 99"),
        (["create", "NEW", "--workers", 2, "--npz", "FILE", "--by-class"], "needs the array"),
        (["create", "NEW", "--workers", 2, "--npz", "FILE", "--label", "z"], "x, y, got 'z'"),
        (["create", "NEW", "--workers", 2, "--npy", "FILE"], "must be an .npy file of numbers"),
        (["show", "NEW"], "a partition must have an index.npz, found none"),
        (["migrate", "DATA", "--batch-sizes", "1,2,3"], "sizes must be 2 batch sizes"),
        (["migrate", "DATA", "--batch-sizes", "1,2", "--minimum", "7"], "add up to 14, more than"),
    ],
)
def test_mistakes_are_told_in_one_line(partition, folder, archive, tmp_path, argv, wrong):
    paths = {"DATA": folder, "NEW": tmp_path / "new", "FILE": archive}
    code, printed = partition(*(paths.get(word, word) for word in argv))
    assert code == 2
    assert printed.startswith("evenstep: error: ")
    assert wrong in printed
    assert printed.count("\n") == 1


def test_who_leaves_gives_everything_away(partition, folder):
    code, planned = partition("migrate", folder, "--leaving", "worker-1", "--dry-run")
    assert (code, planned.splitlines()[-1]) == (0, "6 samples would move")
    code, printed = partition("migrate", folder, "--leaving", "worker-1", "--json")
    assert (code, printed["sizes"]) == (0, {"worker-0": 12, "worker-1": 0})
    code, printed = partition("verify", folder / "worker-0")
    assert (code, printed) == (0, "1 partitions with 12 samples are whole\n")


def test_lost_partition_is_told_from_what_others_have(partition, folder):
    code, printed = partition("verify", folder / "worker-0")
    assert code == 0
    assert re.search(r": 6 samples .*\blost\n\Z", printed)
    code, printed = partition("migrate", folder / "worker-0", "--lost", "worker-1", "--json")
    assert (code, printed) == (0, {"hand_overs": [], "sizes": {"worker-0": 6}})
    code, printed = partition("migrate", folder)
    assert code == 2
    assert re.findall(r"--[\w-]+", printed)[-3:] == ["--batch-sizes", "--leaving", "--lost"]


def test_agent_has_a_limit_of_bandwidth_unless_told_otherwise():
    parser = argparse.ArgumentParser()
    add_serve_arguments(parser)
    given = [[], ["--bandwidth", "2e6"], ["--unlimited"]]
    found = [parser.parse_args(["data", *words]).bandwidth for words in given]
    assert found == [BANDWIDTH, 2e6, None]
