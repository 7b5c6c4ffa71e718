"""The paper's verification of migrations (section 3.5), on embedded data."""

import json
import sys
from itertools import product

import numpy as np
import pytest

from benchmarks import partitions
from evenstep.simulator.workloads.digits import mlp_digits
from reproduction.partition_study import CASES, Study, train


@pytest.mark.slow
def test_skew_costs_accuracy_and_migration_or_importance_weights_give_it_back():
    study = Study(mlp_digits(), updates=100)
    results = {case: [train(study, case, seed) for seed in range(3)] for case in CASES}
    late = {case: [run.late for run in runs] for case, runs in results.items()}
    even, skewed, migrated, weighed = (late[case] for case in CASES)
    assert max(skewed) < min(even) - 0.01
    assert np.median(migrated) == pytest.approx(np.median(even), abs=0.015)
    assert np.median(weighed) == pytest.approx(np.median(even), abs=0.015)
    for run in results["skewed, migration"]:
        assert len(run.migrated_at) == 1
        assert run.num_moved <= 1.2 * run.fewest
        assert 2 < run.gap < 2.1
    assert all(run.gap > 5 for run in results["skewed"])


def run_benchmark(monkeypatch, options):
    monkeypatch.setattr(sys, "argv", ["partitions", *options.split()])
    partitions.main()


def test_benchmark_prints_every_curve_as_json_and_plots_them(monkeypatch, capsys, tmp_path):
    picture = tmp_path / "curves.png"
    options = f"--workload softmax --updates 45 --seeds 0-1 --json --plot {picture}"
    run_benchmark(monkeypatch, options)
    out, err = capsys.readouterr()
    assert err == "", "progress is for terminals"
    rows = json.loads(out)["rows"]
    assert [(row["seed"], row["case"]) for row in rows] == list(product((0, 1), CASES))
    assert [row["num_moved"] > 0 for row in rows] == [False, False, True, False] * 2
    assert all(row["updates"] == list(range(46)) for row in rows)
    assert all(len(row["accuracy"]) == len(row["loss"]) == 46 for row in rows)
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_benchmark_prints_a_table_for_each_question(monkeypatch, capsys):
    run_benchmark(monkeypatch, "--workload softmax --updates 8 --seeds 0-1 --target 0.99")
    printed = capsys.readouterr().out
    assert printed.count("skewed, migration") == 2
    assert "points above i.i.d." in printed and "never" in printed


def test_benchmark_takes_pictures_from_a_path(monkeypatch, capsys, tmp_path):
    """Five workers, two classes each, the paper's batch sizes; classes differ in brightness."""
    rng = np.random.default_rng(0)

    def pictures(count):
        labels = np.arange(count) % 10
        noise = rng.integers(0, 30, (count, 32, 32, 3))
        return (noise + 20 * labels[:, None, None, None]).astype(np.uint8), labels

    (x, y), (x_test, y_test) = pictures(500), pictures(50)
    np.savez(tmp_path / "all.npz", x_train=x, y_train=y, x_test=x_test, y_test=y_test)
    picture = tmp_path / "curves.png"
    run_benchmark(
        monkeypatch, f"--data {tmp_path}/all.npz --updates 3 --seeds 0 --json --plot {picture}"
    )
    found = json.loads(capsys.readouterr().out)
    assert "small net on cifar10, batches of 64, 96, 128, 160, 192" in found["title"]
    assert [row["case"] for row in found["rows"]] == list(CASES)
    # Partitions of 100 samples: counts are 1.28 apart after the first update, and 2.56 after two.
    assert [row["migrated_at"] for row in found["rows"]] == [[], [], [2], []]
    assert picture.exists()
