"""What trains real models in virtual time: tables are there, and the claims hold that must."""

import re

import pytest

from tests.reproduction.tables import column

pytestmark = [pytest.mark.reproduction, pytest.mark.timeout(900)]

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
    assert {
        "before_bsp", "our_before_bsp", "our_fastest_of_bsp_kinds",
        "same_updates", "our_same_updates", "beats_ssp", "our_beats_ssp",
    } <= holding(cluster_a)  # fmt: skip
    _, smaller, *models, _ = cluster_a.tables
    assert len(models) == 3
    for table in models:
        assert list(column(table, "scheme")) == SCHEMES
    assert column(smaller, "Alg. 2: time / BSP, paper") == {16: 0.63, 12: 0.72}


def test_settled_times_are_of_every_scheme_and_model(result):
    settled = result("cluster-a").tables[0]
    schemes = ["BSP", "ASP", "SSP", "Alg. 2", "equal_finish", "oracle"]
    assert [(row["times of"], row["scheme"]) for row in settled.rows] == [
        (model, scheme) for model in ("CifarNet", "ResNet-32", "Inception-V3") for scheme in schemes
    ]
    papers = {
        (row["times of"], row["scheme"]): row["time per update / ASP, paper"]
        for row in settled.rows
        if row["time per update / ASP, paper"] is not None
    }
    assert papers == {("Inception-V3", "Alg. 2"): 0.85, ("Inception-V3", "equal_finish"): 0.85}


def test_settling_is_not_in_settled_times(result):
    for row in result("cluster-a").tables[0].rows:
        if row["scheme"] == "Alg. 2":
            assert row["time per update / BSP"] < row["settling included / BSP"]


def test_scaled_targets_are_said_to_be(result):
    _, _, *models, _ = result("cluster-a").tables
    papers = ["the paper's is 0.8", "the paper's is 0.86", "the paper's on ImageNet is 0.65"]
    for table, said in zip(models, papers, strict=True):
        assert f"(scaled; {said})" in table.title


def test_plots_of_cluster_a_say_what_was_trained(result):
    assert [plot.title for plot in result("cluster-a").plots] == [
        "Settled time per update over BSP's (hardware efficiency)",
        "Updates to the target over BSP's (statistical efficiency), training mlp-digits",
        "Time to the target over BSP's, training mlp-digits",
    ]


def test_balanced_has_the_accuracy_of_bsp_all_the_way(result):
    accuracy = result("accuracy")
    assert {"same_curve", "our_same_curve"} <= holding(accuracy)
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
        assert re.search(r"\ball schemes\b.*\bsame seconds\b", table.note)
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
    for name in ("cluster-a", "accuracy", "weighted", "partitions", "cluster-b"):
        assert [c.name for c in result(name).claims if not (c.holds or c.why)] == []


PER_MODEL = [
    "scheme", "time per update / BSP", "updates / BSP", "updates / BSP, paper",
    "time to target / BSP", "accuracy at the end", "staleness",
]  # fmt: skip
OVER_EPOCHS = [
    "scheme", "after 25% of the updates", "after 50% of the updates", "best accuracy",
    "best accuracy, paper", "virtual seconds",
]  # fmt: skip
TABLES = {
    "cluster-a": [
        ("Time per update once batch sizes have settled, 16 workers", [
            "times of", "scheme", "time per update / BSP", "time per update / BSP, paper",
            "time per update / ASP", "time per update / ASP, paper", "settling included / BSP",
            "last quarter / the one before",
        ]),
        ("ResNet-32 with and without the V100s: settled iteration time over BSP's", [
            "workers", "Alg. 2: time / BSP", "Alg. 2: time / BSP, paper",
            "equal_finish: time / BSP", "equal_finish: time / BSP, paper", "oracle: time / BSP",
            "one sample each: time / BSP",
        ]),
        ("CifarNet's times, training mlp-digits: 16 workers, target", PER_MODEL),
        ("ResNet-32's times, training mlp-digits: 16 workers, target", PER_MODEL),
        ("Inception-V3's times, training mlp-digits: 16 workers, target", PER_MODEL),
        ("Inception-V3's times, training mlp-digits: what staleness costs", [
            "ASP and SSP have", "target", "ASP: updates / BSP", "ASP: updates / BSP, paper",
            "SSP: updates / BSP", "SSP: updates / BSP, paper", "BSP: best accuracy",
            "ASP: best accuracy", "SSP: best accuracy",
        ]),
    ],
    "accuracy": [
        ("Test accuracy of mlp-digits in the course of 80 epochs, with ResNet-32's times",
         OVER_EPOCHS),
        ("Test accuracy of mlp-digits in the course of 20 epochs, with Inception-V3's times",
         OVER_EPOCHS),
    ],
    "weighted": [
        ("20 epochs of mlp-digits under LB-BSP, with Inception-V3's times on Cluster-A", [
            "aggregation", "accuracy", "accuracy, paper", "accuracy, mean over the run",
            "test loss",
        ]),
        ("Parameters after 20 updates in float64: largest difference to BSP's / largest parameter",
         ["aggregation", "difference"]),
    ],
    "partitions": [
        ("mlp-digits, batches of 8, 12, 16, 20, 24: test accuracy", [
            "data", "after 30 updates", "after 60 updates", "at the end", "at the end, paper",
            "largest gap of traversals", "samples moved", "fewest possible",
        ]),
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", TABLES)
def test_tables_have_their_titles_and_columns(result, name):
    tables = result(name).tables
    assert [table.columns for table in tables] == [columns for _, columns in TABLES[name]]
    for table, (title, _) in zip(tables, TABLES[name], strict=True):
        assert table.title.startswith(title)


def test_conditions_have_targets_of_their_own(result):
    table = result("cluster-a").tables[-1]
    assert [row["ASP and SSP have"] for row in table.rows] == [
        "1/n of the learning rate for each gradient",
        "the whole learning rate for each gradient",
        "momentum 0.9, 1/n of the learning rate 0.05",
    ]
    for row in table.rows:
        assert row["target"] == pytest.approx(0.95 * row["BSP: best accuracy"])
