"""Claims about runs on traces: each can fail, and then says why, by its own figures."""

import re
import sys
from dataclasses import replace

import pytest

from reproduction.claims.cluster_b import BACKUP, FLEXRR, SSP, Ratios, claims_on_b
from reproduction.claims.predictors import (
    ALONE,
    FORMER,
    PAPER,
    RMSE,
    TIME,
    Scores,
    claims_of_predictors,
    differences_of_predictors,
)
from reproduction.experiment import Settings
from reproduction.experiments import narx_curve, predictors
from reproduction.experiments.narx_curve import ERROR, FORESEEN
from reproduction.real_load_run import NARX
from tests.figures import numbers_in

HOLDING = {BACKUP: 0.9, SSP: 0.95, FLEXRR: 0.6, NARX: 0.4}
OVERHEADS = {0.0: 0.3, 0.1: 0.5}


def on_b(overheads=OVERHEADS, **resnet32):
    ratios = {"svm": HOLDING, "resnet32": HOLDING | resnet32}
    return {claim.name: claim for claim in claims_on_b(Ratios(ratios, NARX, overheads))}


def test_claims_on_b_can_hold_and_need_no_reason_then():
    assert [(c.holds, c.why) for c in on_b().values()] == [(True, "")] * 5


def test_who_beats_balancing_is_named_with_both_figures():
    claim = on_b(ssp=0.35)["beats_backup_and_ssp"]
    assert claim.holds is False
    assert claim.why == (
        "at least as fast: ssp with ResNet-32 (0.350, against 0.400); why is not known"
    )


@pytest.mark.parametrize("ratio", [0.7, 3.0])
@pytest.mark.parametrize("scheme", [SSP, BACKUP])
def test_much_faster_is_not_marginal_and_slower_is_no_speedup(scheme, ratio):
    claims = on_b(**{scheme: ratio})
    claim = claims[f"{scheme}_marginal"]
    assert claim.holds is False
    assert re.match(rf"it takes {ratio:.3f} .*\bwith ResNet-32; ", claim.why)
    assert "SVM" not in claim.why
    assert claim.why.endswith("why is not known") is (scheme == SSP or ratio > 1)


def test_reason_of_redundant_execution_is_by_the_trace():
    why = on_b(backup=0.5)["backup_marginal"].why
    # The bundled machines.
    assert re.search(r"the slowest\b[^,;]* 4\.5 times\b.*\bthe third slowest 2\.8 times\b", why)


def test_reason_of_flexrr_names_the_models_and_where_it_changes():
    claim = on_b(flexrr=0.35)["beats_flexrr"]
    assert claim.holds is False
    assert "flexrr with ResNet-32 (0.350, against 0.400)" in claim.why
    assert "SVM" not in claim.why
    assert re.search(r"faster to slower .*\b5%", claim.why)


@pytest.mark.parametrize("overheads", [{0.0: 0.1, 0.1: 0.2}, {0.0: 0.5, 0.1: 0.6}])
def test_overhead_that_does_not_decide_says_what_there_is(overheads):
    claim = on_b(overheads)["overhead_decides"]
    assert claim.holds is False
    low, high = overheads.values()
    assert f"at overheads of 0% to 10% FlexRR has {low:.3f} to {high:.3f}" in claim.why
    assert "LB-BSP 0.400" in claim.why


def scores(changes=None):
    """Return scores of which all claims are true, but for what is changed: {(P, ema): {...}}."""
    made = {
        (cluster, name): {RMSE: 8.0, TIME: 0.5, "noise": 4.0, "over_oracle": 1.25}
        for cluster in ("B", "P")
        for name in (*PAPER, ALONE, FORMER, "kalman", "best_of")
    }
    for cluster in ("B", "P"):
        made[cluster, "memoryless"] |= {RMSE: 11.0, TIME: 0.6}
        for name in ("narx", FORMER, "kalman", "best_of"):
            made[cluster, name] |= {RMSE: 4.8, TIME: 0.43}
    for key, figures in (changes or {}).items():
        made[key] |= figures
    return Scores(made)


def of_predictors(changes=None):
    return {claim.name: claim for claim in claims_of_predictors(scores(changes))}


def test_claims_of_predictors_can_hold_and_need_no_reason_then():
    claims = of_predictors().values()
    assert [(c.name, c.why) for c in claims if c.why or not c.holds] == []


@pytest.mark.parametrize(
    ("name", "key", "figures", "why"),
    [
        ("narx_best", ("P", "rnn"), {TIME: 0.4}, "time / BSP of rnn 0.400, narx 0.430"),
        ("narx_best", ("P", "rnn"), {RMSE: 4.0}, "RMSE of rnn 4.000, narx 4.800"),
        ("narx_beats_ema", ("P", "narx"), {RMSE: 7.0}, "RMSE of narx 7.000, ema 8.000"),
        ("memoryless_worst_of_simple", ("P", "memoryless"), {RMSE: 7.5}, "memoryless 7.500"),
        (
            "kalman_as_good",
            ("P", "kalman"),
            {TIME: 0.6},
            "time / BSP of kalman 0.600, best_of 0.430",
        ),
        ("reuse_pays", ("P", ALONE), {RMSE: 4.7}, "RMSE of narx:reuse=false 4.700, narx 4.800"),
    ],
)
def test_claims_of_predictors_can_fail_with_their_figures(name, key, figures, why):
    claim = of_predictors({key: figures})[name]
    assert claim.holds is False
    assert why in claim.why
    assert claim.why.endswith("why is not known")


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("narx_by_40", ("P", "narx")),
        ("narx_by_40_on_the_trace", ("B", "narx")),
        ("former_by_40_on_the_trace", ("B", FORMER)),
    ],
)
@pytest.mark.parametrize("rmse", [7.4, 1.0])
def test_by_40_fails_with_what_noise_leaves_to_gain(name, key, rmse):
    claims = of_predictors({key: {RMSE: rmse}})
    claim = claims.pop(name)
    assert (claim.holds, claim.of) == (False, "paper")
    assert f"{1 - rmse / 8:.0%}" in claim.text
    figures, _, noise = claim.why.partition("; ")
    assert figures == f"RMSE of {key[1]} {rmse:.3f}, ema 8.000"
    assert noise.startswith("noise alone") and numbers_in(noise) == [4.0, 50]
    assert all(claim.holds for other, claim in claims.items() if "by_40" in other)


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("narx_by_15", ("P", "narx")),
        ("narx_by_15_on_the_trace", ("B", "narx")),
        ("former_by_15_on_the_trace", ("B", FORMER)),
    ],
)
@pytest.mark.parametrize("time", [0.49, 0.3])
def test_by_15_in_time_fails_with_what_the_oracle_gains(name, key, time):
    claim = of_predictors({key: {TIME: time}})[name]
    assert (claim.holds, claim.of) == (False, "paper")
    assert f"{1 - time / 0.5:.0%}" in claim.text
    assert f"time / BSP of {key[1]} {time:.3f}, ema 0.500" in claim.why
    assert re.search(r"\boracle\b.*\bema .* by 20%", claim.why)


def test_second_best_is_another_where_another_is():
    assert scores({("B", "lstm"): {RMSE: 6.0}}).second("B", RMSE) == "lstm"


def test_what_is_said_of_reuse_and_order_is_of_the_figures():
    changes = {("P", ALONE): {RMSE: 9.6}, ("B", ALONE): {RMSE: 2.4}, ("P", "lstm"): {RMSE: 7.0}}
    reuse, same, other = differences_of_predictors(scores(changes))
    assert re.search(r"\b0\.50 times on Cluster-B\b.*\b2\.00 times on scenario P\b", reuse)
    assert re.search(r"RMSE .*\brnn, lstm, arima is the paper's on Cluster-B\b", same)
    assert re.search(r"RMSE .*\brnn, lstm, arima is another on scenario P\b", other)


def test_without_statsmodels_one_row_is_missing_and_that_is_said(monkeypatch):
    scale = replace(predictors.QUICK, num_workers=2, iterations=30, start=24)
    monkeypatch.setattr(predictors, "QUICK", scale)
    monkeypatch.setattr(predictors, "_score", lambda *part: scores().of["P", "narx"])
    monkeypatch.setitem(sys.modules, "statsmodels", None)
    found = predictors.run(Settings(quick=True), lambda share, text: None)
    for table in found.tables:
        assert "arima" not in [row["predictor"] for row in table.rows]
    assert any(re.match(r"arima .*\bstatsmodels is not", text) for text in found.differences)


def of_curve(trace=None, scenario=None):
    row = {"spikes": 9, ERROR: 0.1, "changes": 7, FORESEEN: 0.9}
    rows = [
        {"cluster": "Cluster-B", **row, **(trace or {})},
        {"cluster": "scenario P", **row, **(scenario or {})},
    ]
    return {claim.name: claim for claim in narx_curve._claims(rows)}


def test_claims_of_the_curve_can_hold_and_need_no_reason_then():
    assert [(c.holds, c.why) for c in of_curve().values()] == [(True, "")] * 3


@pytest.mark.parametrize("where", ["trace", "scenario"])
def test_prompt_is_asked_of_both_clusters(where):
    claims = of_curve(**{where: {FORESEEN: 0.2}})
    name, cluster = {
        "trace": ("prompt_on_the_trace", "Cluster-B"), "scenario": ("prompt", "scenario P")
    }[where]  # fmt: skip
    assert [other for other, claim in claims.items() if not claim.holds] == [name]
    assert re.match(rf"{cluster}: .*\bforeseen 0\.20, by 7 changes; ", claims[name].why)


def test_curve_that_is_not_robust_says_where():
    claim = of_curve(trace={ERROR: 0.7})["robust"]
    assert claim.holds is False
    assert re.match(r"Cluster-B: error .*\b0\.70, by 9 spikes", claim.why)
    assert "scenario P" not in claim.why


def test_what_did_not_happen_proves_nothing():
    claims = of_curve(trace={ERROR: None, FORESEEN: None})
    why = {name: claim.why for name, claim in claims.items() if not claim.holds}
    assert list(why) == ["robust", "prompt_on_the_trace"]
    assert re.fullmatch(r"Cluster-B has none .*\bspikes", why["robust"])
    assert re.fullmatch(r"Cluster-B has none .*\bchanges", why["prompt_on_the_trace"])
