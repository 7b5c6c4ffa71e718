"""The paper's verification of migrations (section 3.5), on embedded data."""

import json
import sys

import numpy as np
import pytest

from benchmarks import partitions
from benchmarks.partitions import CASES, Study, train
from evenstep.workloads.digits import mlp_digits


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


def test_benchmark_prints_its_tables_and_plots(monkeypatch, capsys, tmp_path):
    picture = tmp_path / "curves.png"
    options = f"--workload softmax --updates 45 --seeds 0-1 --json --plot {picture}"
    monkeypatch.setattr(sys, "argv", ["partitions", *options.split()])
    partitions.main()
    accuracy, against = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert [row["test accuracy"] for row in accuracy["rows"]] == list(CASES)
    assert [row["samples moved"] > 0 for row in against["rows"]] == [False, False, True, False]
    assert picture.read_bytes().startswith(b"\x89PNG")
