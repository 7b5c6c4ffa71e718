"""What runs in virtual time, without gradients: tables are there, and the claims hold."""

import re

import numpy as np
import pytest

from evenstep.simulator.clusters.registry import make_cluster
from reproduction.four_gpus import OURS, PAPERS
from tests.reproduction.tables import column, shapes

pytestmark = [pytest.mark.reproduction, pytest.mark.timeout(900)]


def failing(result):
    return [claim.text for claim in result.claims if not claim.holds]


def test_batch_sizes_of_four_gpus_are_the_papers(result):
    micro = result("micro")
    # What a busy machine does to workers that are real is another matter.
    real = ("real_line", "our_real_line")
    simulated = [claim for claim in micro.claims if claim.name not in real]
    assert [claim.text for claim in simulated if not claim.holds] == []
    sizes = column(micro.tables[0], "sizes before 150")
    assert sizes[PAPERS] == [89, 21, 12, 6]
    assert sizes["equal_finish"] == [89, 21, 12, 6]
    assert column(micro.tables[0], "sizes at the end")["equal_finish"] == [100, 8, 13, 7]


def test_what_the_paper_claims_is_asked_of_its_own_algorithm(result):
    for claim in result("micro").claims:
        papers = PAPERS in claim.text and claim.name != "faster"
        assert (claim.of == "paper") is papers, claim.text


def test_trade_is_asked_of_measured_curves(result):
    found = result("micro")
    (table,) = (table for table in found.tables if table.title.startswith("Cluster-A"))
    curves = make_cluster("A:4", None, 1, 0, False).curves
    even = curves.times_at(np.full(4, 32))
    for name, policy in (("trade", PAPERS), ("our_trade", OURS)):
        balanced = curves.times_at(np.array(column(table, "sizes before 150")[policy]))
        cost, *_, saved = np.abs(balanced - even)
        text = found.claim(name).text
        assert f"saves it much ({saved:.1f} s, the paper nearly 2 s)" in text
        assert f"costs it little ({cost:.1f} s, the paper 0.5 s): {policy}, on Cluster-A" in text


def test_papers_sizes_stand_beside_those_on_measured_curves_too(result):
    tables = [table for table in result("micro").tables if table.kind == "virtual"]
    papers = [table.rows[0]["sizes before 150, paper"] for table in tables]
    assert papers == [[89, 21, 12, 6]] * 3


def test_tables_of_micro(result):
    virtual = [
        "policy",
        "fine-tune from",
        "fine-tune from, paper",
        "sizes before 150",
        "sizes before 150, paper",
        "optimum before",
        "sizes at the end",
        "optimum at the end",
        "settled after",
        "settled after the change",
        "waste",
    ]
    real = [
        "policy",
        "sizes before",
        "sizes before, paper",
        "optimum before",
        "sizes at the end",
        "optimum at the end",
        "t before, ms",
        "t at the end, ms",
        "test accuracy",
        "parameters, difference to one process",
    ]
    titles = (
        "scenario G: the paper's optimum, without noise",
        "scenario G: the paper's optimum, with noise",
        "Cluster-A: measured curves, without noise",
    )
    simulated, rest = shapes(result("micro"))[:3], shapes(result("micro"))[3:]
    assert simulated == [(title, "virtual", virtual) for title in titles]
    title = "For real: four processes, the M60's line degraded at iteration 40"
    assert rest in ([], [(title, "emulated", real)])


def test_micro_is_also_run_for_real_or_the_reason_is_said(result):
    micro = result("micro")
    real = [table for table in micro.tables if table.kind == "emulated"]
    said = [text for text in micro.differences if text.startswith("Not for real: ")]
    assert len(real) + len(said) == 1
    if real:
        policies = [row["policy"] for row in real[0].rows]
        assert policies == [OURS, PAPERS]
        for row in real[0].rows:
            assert sum(row["sizes before"]) == sum(row["sizes at the end"]) == 128
        titles = [plot.title for plot in micro.plots if plot.kind == "emulated"]
        assert titles == [
            f"For real, {policy}: {what}"
            for policy in policies
            for what in ("batch size", "batch processing time")
        ]


def test_micro_shows_both_algorithms_over_iterations(result):
    titles = [plot.title for plot in result("micro").plots if plot.kind == "virtual"]
    assert len(titles) == 4
    assert sum(title.startswith("equal_finish") for title in titles) == 2


def test_narx_with_reuse_is_better_than_ema_in_p(result):
    predictors = result("predictors")
    # On the trace the paper is contradicted, and the page says so.
    in_p = [claim for claim in predictors.claims if not claim.name.endswith("_on_the_trace")]
    assert [claim.text for claim in in_p if not claim.holds] == []
    assert [c.name for c in predictors.claims if not (c.holds or c.why)] == []
    rmse = column(predictors.tables[1], "RMSE")
    assert rmse["narx"] < rmse["ema"]
    assert rmse["narx, models of a former run"] < rmse["ema"]


def test_every_predictor_of_the_paper_has_its_figure_beside_ours(result):
    trace, scenario, *others = result("predictors").tables
    papers = {name: value for name, value in column(scenario, "RMSE, paper").items() if value}
    assert papers == {
        "memoryless": 11.85, "ema": 7.85, "arima": 9.67, "rnn": 8.34, "lstm": 9.19, "narx": 4.78
    }  # fmt: skip
    assert "Google trace" in trace.title
    assert re.search(r"\bsame seconds .*: 900 s\b", trace.note)
    assert [table.title.partition(":")[0] for table in others] == ["scenario S", "scenario M"]
    for table in others:
        assert list(column(table, "RMSE")) == ["ema", "narx"]


def test_nobody_is_better_than_who_knows_all_but_the_noise(result):
    for table in result("predictors").tables:
        (noise,) = re.findall(r"would have an RMSE of (\d+\.\d+)", table.note)
        assert 0 < float(noise) <= 1.02 * min(column(table, "RMSE").values())


def test_arima_is_more_than_the_average_that_it_begins_with(result):
    rmse = column(result("predictors").tables[1], "RMSE")
    assert rmse["arima"] != rmse["ema"]


def test_narx_is_robust_and_prompt(result):
    curve = result("narx-curve")
    assert failing(curve) == []
    assert "prompt_on_the_trace" in [claim.name for claim in curve.claims]
    assert re.search(r"\bnot that of `cluster-b`", curve.differences[0])


@pytest.mark.parametrize("name", ["scale", "modern"])
def test_beyond_the_paper(result, name):
    assert failing(result(name)) == []


def test_cost_of_a_decision_is_told_apart_from_virtual_time(result):
    assert shapes(result("scale")) == [
        (
            "Scenario G: settling within 5 % of the optimum, and time lost against it",
            "virtual",
            [
                "workers",
                "policy",
                "settled after",
                "after the change",
                "waste",
                "iteration time / BSP",
                "seeds",
            ],
        ),
        (
            "A decision (observe and plan), median milliseconds",
            "measured",
            ["workers", "stepwise", "equal_finish"],
        ),
    ]


def test_table_of_the_modern_cluster(result):
    assert shapes(result("modern")) == [
        (
            "2 A100, 3 RTX 6000 and 3 T4, Inception-V3, 256 samples per iteration",
            "virtual",
            [
                "line",
                "policy",
                "iteration time / BSP",
                "lost against the optimum",
                "waiting",
                "sizes at the end",
            ],
        )
    ]
    assert result("modern").tables[0].note.endswith("Figures: seed 0.")
