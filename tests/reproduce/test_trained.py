"""What trains real models in virtual time: tables are there, and the claims hold that must."""

import pytest

from tests.reproduce.tables import column

pytestmark = [pytest.mark.reproduce, pytest.mark.timeout(900)]

SCHEMES = ["bsp", "asp", "ssp", "lb-bsp:stepwise:literal=true", "lb-bsp"]


def holding(result):
    return {claim.name for claim in result.claims if claim.holds}


def test_weighted_aggregation_equals_bsp_and_naive_is_worse(result):
    weighted = result("weighted")
    assert {"weighted_equals_bsp", "same_accuracy", "naive_differs", "naive_worse"} == holding(
        weighted
    )
    assert column(weighted.tables[0], "accuracy, paper")["lb-bsp:unweighted"] == 0.43


def test_balanced_is_the_fastest_of_the_bsp_kinds(result):
    cluster_a = result("cluster-a")
    assert {"fastest_of_bsp_kinds", "same_updates", "beats_ssp"} <= holding(cluster_a)
    *models, _, smaller = cluster_a.tables
    assert len(models) == 3
    for table in models:
        assert list(column(table, "scheme")) == SCHEMES
    assert column(smaller, "Alg. 2: time / BSP, paper") == {16: 0.63, 12: 0.72}


def test_scaled_targets_are_said_to_be(result):
    *models, _, _ = result("cluster-a").tables
    papers = ["the paper's is 0.8", "the paper's is 0.86", "the paper's on ImageNet is 0.65"]
    for table, said in zip(models, papers, strict=True):
        assert f"(scaled; {said})" in table.title


def test_balanced_has_the_accuracy_of_bsp_all_the_way(result):
    accuracy = result("accuracy")
    assert "same_curve" in holding(accuracy)
    assert [len(plot.curves) for plot in accuracy.plots] == [5, 5]


def test_balanced_beats_redundant_execution_and_ssp_on_cpus(result):
    cluster_b = result("cluster-b")
    assert {"beats_backup_and_ssp", "overhead_decides"} <= holding(cluster_b)
    papers = [column(table, "iteration time / BSP, paper") for table in cluster_b.tables[:2]]
    # It learns from fewer iterations in a quick run, before the seconds that are compared.
    narx = "lb-bsp:proportional,predictor=narx:start=100"
    assert [paper[narx] for paper in papers] == [0.38, 0.42]


def test_schemes_on_a_trace_are_compared_over_the_same_seconds(result):
    svm, resnet32, _ = result("cluster-b").tables[:3]
    for table in (svm, resnet32):
        updates = column(table, "updates")
        for scheme, ratio in column(table, "iteration time / BSP").items():
            assert ratio == pytest.approx(updates["bsp"] / updates[scheme])
        assert "all schemes over the same seconds of it" in table.note
        assert "300 s of its hour" in table.note


def test_balancing_that_has_not_learned_is_not_shown_as_narx(result):
    accuracy = column(result("cluster-b").tables[0], "accuracy")
    missing = [scheme for scheme, value in accuracy.items() if value is None]
    assert missing == ["lb-bsp:proportional,predictor=narx:start=100"]


def test_migrations_are_as_good_as_mixed_data(result):
    partitions = result("partitions")
    assert {"as_good_as_mixed", "skew_costs", "bounded"} <= holding(partitions)
    moved = column(partitions.tables[0], "samples moved")
    assert moved["skewed"] == 0 < moved["skewed, migration"]


def test_claim_that_does_not_hold_says_why(result):
    for name in ("cluster-a", "accuracy", "cluster-b"):
        assert [c.name for c in result(name).claims if not (c.holds or c.why)] == []
