"""Claims about machines, GPUs and policies fail on figures that contradict them, and say why."""

import re
from dataclasses import replace

import numpy as np
import pytest

from evenstep.simulator.clusters.cluster_a import KINDS
from evenstep.simulator.clusters.registry import make_cluster
from evenstep.simulator.engine.simulation import Setup
from evenstep.simulator.workloads import NUM_TRAINING
from reproduction.experiments import (
    cpu_curve,
    gpu_curve,
    micro,
    modern,
    overhead,
    scale,
    slowdown,
)
from reproduction.four_gpus import BLOCKING, OURS, PAPERS, POLICIES
from reproduction.netns import results
from reproduction.netns.run import NetnsRun
from tests.figures import numbers_in


def failing(claims):
    """Return why each claim fails, by name."""
    return {claim.name: claim.why for claim in claims if claim.holds is False}


@pytest.fixture(scope="module")
def never_balanced():
    """Runs in which no batch size ever changes."""
    even = {
        name: micro.follow(make_cluster(spec, None, 160, 0, False), Setup("even"))
        for name, (_, spec) in micro._CLUSTERS.items()
    }
    return {
        (name, noisy, policy): even[name]
        for name in even
        for noisy in (False, True)
        for policy in POLICIES
    }


def test_where_nothing_is_balanced_no_claim_of_micro_holds(never_balanced):
    claims = micro._claims(never_balanced)
    why = failing(claims)
    even, before, at_the_end = [32] * 4, [89, 21, 12, 6], [100, 8, 13, 7]
    assert {name: numbers_in(text) for name, text in why.items()} == {
        "sizes": [*even, 57],
        "our_sizes": [*even, 57, *before, *even, 68, *at_the_end],
        "fine_tune": [],
        "trade": [],
        "our_trade": [],
        "new_equilibrium": [10, 0, 5],
        "our_new_equilibrium": [10, 0, 5],
        "faster": [],
    }
    assert why["fine_tune"] == "it never began"
    assert why["faster"] == "equal_finish never settles"
    assert re.search(r"\bV100 .*\bnot\b.* slower", why["trade"])
    assert why["our_trade"] == why["trade"]
    assert len(claims) == 8


def test_differences_of_micro_follow_the_figures(never_balanced):
    said = micro._differences(never_balanced)
    assert any(re.search(r"fine-tune at - .*\bat once, and at -", text) for text in said)
    assert any(re.search(r"with noise: - .*, - with equal_finish", text) for text in said)
    key = "G", False, BLOCKING
    later = never_balanced | {key: replace(never_balanced[key], fine_tune_at=40)}
    assert any("enters fine-tune at 40 where plans" in text for text in micro._differences(later))


def test_faster_is_asked_of_the_better_of_both():
    claim = micro._faster({OURS: 30, BLOCKING: 114, PAPERS: 29})
    assert not claim.holds
    assert re.search(r"settles after 29$", claim.why)
    assert micro._faster({OURS: 28, BLOCKING: 114, PAPERS: 29}).holds
    assert not micro._faster({OURS: None, BLOCKING: None, PAPERS: None}).holds


def test_trade_that_costs_as_much_as_it_saves_does_not_hold(never_balanced):
    outcome = never_balanced["A", False, PAPERS].outcome
    sizes = outcome.sizes.copy()
    sizes[149] = [127, 0, 0, 31]
    claim = micro._trade("trade", "paper", PAPERS, replace(outcome, sizes=sizes))
    assert not claim.holds
    assert re.match(r"it saves 0\.2 times\b", claim.why)


def test_fine_tune_at_another_time_does_not_hold():
    assert micro._fine_tune(33).holds
    claim = micro._fine_tune(17)
    assert not claim.holds
    assert claim.why == "it is 13 iterations away; 3 are 'around'"


def test_line_that_changes_nothing_fails_for_real_too():
    sizes, times = np.full((24, 4), 32), np.full((24, 4), 0.2)
    samples = np.zeros(2 * NUM_TRAINING, dtype=int)
    workers = ["V100", "M60", "K80", "K520"]
    run = NetnsRun(workers, sizes, times, samples, accuracy=0.1, difference=1e-6)
    fine = replace(run, difference=1e-16, samples=np.tile(np.arange(NUM_TRAINING), 2))
    claims = results._claims({OURS: fine, PAPERS: run}, change_at=12)
    why = failing(claims)
    in_the_name = numbers_in(PAPERS)
    assert {name: numbers_in(text) for name, text in why.items()} == {
        "real_line": [200, 200],
        "our_real_line": [200, 200],
        "real_training": [*in_the_name, 1e-10],
        "real_samples": [*in_the_name, 2 * NUM_TRAINING],
    }
    for name in ("real_line", "our_real_line"):
        assert "M60" in why[name]
    for name in ("real_training", "real_samples"):
        assert f"with {PAPERS}" in why[name]
    assert {claim.name: claim.of for claim in claims}["real_line"] == "paper"


def test_run_of_less_than_an_epoch_says_nothing_of_samples():
    short = NetnsRun(["M60"], np.ones((2, 1), int), np.ones((2, 1)), np.arange(2), 0.1, 0.0)
    why = failing(results._claims({OURS: short, PAPERS: short}, change_at=1))["real_samples"]
    assert why == "2 updates make 0 whole epochs"


def test_gpus_that_contradict_the_paper_are_named():
    curves = {(curve.model, curve.gpu): curve for curve in gpu_curve.read_curves(None)}
    for (model, gpu), curve in curves.items():
        if model == "inception_v3" and curve.kind == "measured":
            # Slower and slower per sample, so without overhead; all of them with the same limit.
            seconds = {"V100": 3.0, "M60": 2.0, "K80": 1.0}[gpu] * curve.sizes[:3] ** 1.5
            curves[model, gpu] = replace(curve, sizes=curve.sizes[:3], seconds=seconds)
    falling = curves["inception_v3", "K80"]
    curves["inception_v3", "K80"] = replace(falling, seconds=falling.seconds[[0, 2, 1]])
    small = curves["cifarnet", "V100"]
    curves["cifarnet", "V100"] = replace(small, seconds=small.sizes / 100)
    why = failing(gpu_curve._claims(curves))
    assert why["overhead"].startswith("the fit finds -")
    assert "on V100, -" in why["overhead"]
    assert re.match(r"less than 1\.5 times\b.*; .*\bsmallest batch size", why["saturation"])
    assert re.match(r".*\blargest size\b.* the same\b", why["memory"])
    assert re.fullmatch(r"64 samples .*\bthan 32 on K80", why["monotone"])
    assert why["order"] == "the order is M60 (362.039 s), K80 (512.000 s), V100 (543.058 s)"


def test_derived_gpu_does_not_make_limits_differ():
    curves = {(curve.model, curve.gpu): curve for curve in gpu_curve.read_curves(None)}
    for key in [("inception_v3", gpu) for gpu in ("V100", "K80")]:
        curve = curves[key]
        curves[key] = replace(curve, sizes=curve.sizes[:3], seconds=curve.seconds[:3])
    limits = {gpu: curves["inception_v3", gpu].limit for gpu in KINDS}
    assert limits == {"V100": "64", "M60": "64", "K80": "64", "K520": "32 (derived)"}
    assert "memory" in failing(gpu_curve._claims(curves))


def test_limit_beyond_the_largest_size_tried_is_open():
    curves = {(curve.model, curve.gpu): curve for curve in gpu_curve.read_curves(None)}
    assert curves["cifarnet", "M60"].limit == ">= 256"
    assert curves["cifarnet", "K520"].limit == ">= 256 (derived)"
    assert curves["inception_v3", "M60"].limit == "64"


def test_saturation_is_said_to_be_where_the_fit_sees_it():
    curve, *_ = gpu_curve.read_curves(None)
    flat = replace(curve, seconds=1 + np.maximum(curve.sizes, 40))
    line = replace(curve, seconds=1 + curve.sizes)
    derived = replace(flat, kind="derived", gpu="K520")
    seen = gpu_curve._saturation_seen([flat])
    assert re.search(r"saturation on V100 \(Inception-V3: 40\)\.$", seen)
    seen = gpu_curve._saturation_seen([line, derived, replace(flat, gpu="K80")])
    assert re.search(r"saturation on K80 \(Inception-V3: 40\), .*none on the V100; .*paper", seen)
    assert "K520" not in seen
    seen = gpu_curve._saturation_seen([line, derived])
    assert re.search(r"saturation on no measured GPU; .*paper", seen)
    assert "K520" not in seen and numbers_in(seen) == []


def timed(model="resnet32", seconds=(1.0, 2.0, 3.0), exchange=0.001, num_bytes=1_000_000):
    sizes, seconds = np.array([8.0, 16.0, 24.0]), np.array(seconds)
    return cpu_curve.Timed(model, sizes, seconds, seconds, exchange, num_bytes)


def test_exchange_of_the_papers_cluster_is_computed():
    # 2 MB there and back for each of 32 workers, over 10 Gbit/s.
    assert timed().papers_exchange == pytest.approx(0.0512)
    assert timed().papers_computation == pytest.approx(3 / 3.0512)


def test_cpu_that_contradicts_the_paper_is_explained_by_its_figures():
    bent = timed("cifarnet", seconds=(1.0, 9.0, 1.0), exchange=0.25)
    why = failing(cpu_curve._claims([timed(), bent]))
    assert re.search(r"with CifarNet, more than 2%; .*\bnot known$", why["linear"])
    assert "ResNet-32" not in why["linear"]
    assert why["mostly_computation"] == "the exchange takes 250.0 ms with CifarNet, 20.0% of t"
    assert re.findall(r"([\d.]+) ms with ([\w-]+), ([\d.]+)%", why["mostly_computation_of_32"]) == [
        ("51.2", "ResNet-32", "1.7"),
        ("51.2", "CifarNet", "4.9"),
    ]


def test_both_settings_are_asked_apart():
    claims = {claim.name: claim.holds for claim in cpu_curve._claims([timed()])}
    assert claims == {"linear": True, "mostly_computation": True, "mostly_computation_of_32": False}


@pytest.mark.parametrize("what", ["CPU", "memory"])
def test_limit_that_does_nothing_is_no_slowdown(what):
    claim = slowdown._claim(what, {1.0: 100.0, 0.5: 95.0, 0.25: 90.0})
    assert claim.holds is False
    assert re.search(r"\b0\.90 of .*\bspeed with 0\.25\b", claim.text)
    assert re.fullmatch(r"less than 0\.8 .*\bnot known", claim.why)
    assert slowdown._claim(what, {1.0: 100.0, 0.25: 30.0}).holds


def rounds(**others):
    """Rounds of 10 ms, but for those of some numbers of workers."""
    spent = {32: 0.01, 64: 0.01, 96: 0.01} | {int(n[1:]): t for n, t in others.items()}
    return {
        case: overhead.Spent(np.full(3, spent[case.workers]), manager=0.004, workers=0.003)
        for case in overhead.FULL.cases
    }


def test_overhead_that_is_too_large_is_told_by_its_parts():
    why = failing(overhead._claims(rounds(_96=0.071), np.array([0.001])))
    # The bound in percent and in ms; the round and measuring; CPU of the manager and the workers.
    parts = [1.1, 15.6, 71.0, 1.00, 4.0, 3.0]
    assert {name: numbers_in(text) for name, text in why.items()} == {
        "small": parts,
        "our_small": parts,
        "grows_slowly": [7.1, 6],
    }
    assert re.search(r"manager 4\.0 ms .*workers 3\.0 ms$", why["small"])
    assert re.search(r"7\.1 times with narx\b", why["grows_slowly"])


def test_papers_overhead_is_asked_of_the_papers_predictor():
    found = rounds()
    found[overhead.Case(96, "best_of")] = overhead.Spent(np.array([0.02]), 0.004, 0.003)
    claims = {claim.name: claim for claim in overhead._claims(found, np.array([0.0]))}
    assert (claims["small"].holds, claims["small"].of) == (True, "paper")
    assert (claims["our_small"].holds, claims["our_small"].of) == (False, "evenstep")


def rounded(row):
    return {name: round(x, 6) if isinstance(x, float) else x for name, x in row.items()}


def test_row_of_overhead_has_shares_of_the_assumed_iteration(monkeypatch):
    monkeypatch.setattr(overhead, "ITERATION", 2.0)
    updating, measuring = np.linspace(0, 1, 101), np.linspace(0, 0.1, 101)
    rounds = overhead.Spent(updating, manager=0.004, workers=0.003)
    case = overhead.Case(96, "narx")
    who = {"workers": 96, "predictor": "narx", "played by": "messages"}
    assert rounded(overhead._row_of_times(case, rounds, measuring)) == {
        **who,
        "measuring, ms": 50.0,
        "updating, ms": 500.0,
        "manager's CPU, ms": 4.0,
        "workers' CPU, ms": 3.0,
    }
    assert rounded(overhead._row_of_shares(case, updating, measuring)) == {
        **who,
        "measuring: mean": 0.025,
        "measuring: 5th": 0.0025,
        "measuring: 95th": 0.0475,
        "updating: mean": 0.25,
        "updating: 5th": 0.025,
        "updating: 95th": 0.475,
        "both: mean": 0.275,
        "both: mean, paper": "< 0.011",
    }


def test_policies_that_lose_more_than_they_may_are_named_with_their_workers():
    wasted = {(4, "stepwise"): 0.02, (16, "stepwise"): 0.01, (512, "stepwise"): 0.3}
    wasted |= {(4, "equal_finish"): 0.03, (16, "equal_finish"): 0.001, (512, "equal_finish"): 0.2}
    figures = {key: {"waste": share} for key, share in wasted.items()}
    assert failing(scale._claims(figures, (4, 16, 512))) == {
        "waste": "it loses 3.0% with 4 workers",
        "better": "with 4 workers it loses 3.0%, stepwise 2.0%",
        "alg_2_does_not_scale": "with 16 workers it loses 1.0%, after 2.0% with fewer",
    }


def test_modern_cluster_on_which_nothing_is_gained_is_told_by_its_figures():
    over = {(line, policy): 0.9 for line in modern.COMMUNICATIONS for policy in modern.POLICIES}
    over |= {("10 Gbit/s", "equal_finish"): 0.8, ("100 Gbit/s", "equal_finish"): 1.1}
    said = "iteration time / BSP's is 0.800 over 10 Gbit/s, 1.100 over 100 Gbit/s"
    assert failing(modern._claims(over)) == {
        "gain": f"its {said}",
        "line": said,
        "best": "over 100 Gbit/s stepwise:literal=true has 0.900 of BSP's time, equal_finish "
        "1.100, over 100 Gbit/s stepwise has 0.900 of BSP's time, equal_finish 1.100",
    }
