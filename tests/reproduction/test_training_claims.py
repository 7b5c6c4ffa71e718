"""Claims of `accuracy`, `weighted` and `partitions`: figures that contradict them, and reasons."""

import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from reproduction import small_net
from reproduction.data import Data
from reproduction.experiment import Settings
from reproduction.experiments import accuracy, partitions, weighted
from reproduction.experiments.partitions import MIGRATED, MIXED, SKEWED, WEIGHED
from reproduction.partition_study import Result as Run
from tests.reproduction.made_up import trained, trainings

LOWER = trained((0.1, 0.3, 0.7))


def by_name(claims):
    return {claim.name: claim for claim in claims}


@pytest.mark.parametrize(("who", "name"), [("alg_2", "same_curve"), ("balanced", "our_same_curve")])
def test_curve_that_leaves_bsps_is_said_to_and_where(who, name):
    done = [trainings(asp=LOWER, ssp=LOWER), trainings(**{who: trained((0.1, 0.45, 0.8))})]
    claims = by_name(accuracy._claims(done))
    assert [each for each in ("same_curve", "our_same_curve") if not claims[each].holds] == [name]
    assert "at most 0.0500" in claims[name].text
    assert re.match(r"they differ most .*\b10 updates\b", claims[name].why)


def test_stale_schemes_that_end_lower_do():
    assert by_name(accuracy._claims([trainings(asp=LOWER, ssp=LOWER)]))["stale_end_lower"].holds


def test_stale_scheme_that_ends_no_lower_is_named():
    claim = by_name(accuracy._claims([trainings(asp=LOWER)]))["stale_end_lower"]
    assert not claim.holds
    assert re.search(r"\bnot: SSP with ResNet-32 \(0\.0 below\);", claim.why)
    assert "ASP" not in claim.why


@pytest.mark.parametrize(("end", "said"), [(0.804, "0.4 above"), (0.796, "0.4 below")])
def test_how_far_above_or_below_a_stale_scheme_ends_is_said(end, said):
    claim = by_name(accuracy._claims([trainings(asp=trained((0.1, end)))]))["stale_end_lower"]
    assert f"ASP with ResNet-32 ({said})" in claim.why


def test_lower_than_bsp_but_not_than_alg_2_is_not_lower_than_both():
    done = [trainings(asp=LOWER, ssp=LOWER, alg_2=LOWER)]
    assert not by_name(accuracy._claims(done))["stale_end_lower"].holds


@pytest.mark.parametrize(
    ("model", "is_complete", "said"),
    [("resnet32", True, 0), ("resnet32", False, 1), ("inception_v3", True, 1)],
)
def test_what_is_not_the_papers_is_said_not_to_be(model, is_complete, said):
    done = replace(trainings(model), is_complete=is_complete)
    found = accuracy._unlike_the_papers([done])
    assert len(found) == said
    assert all("a net on pictures" in text for text in found)


def test_titles_say_what_was_trained():
    done = trainings()
    for shown in (accuracy._table(done), accuracy._plot(done)):
        assert shown.title.startswith("Test accuracy of a net on pictures")


def weighted_claims(bsp=None, balanced=None, naive=None, apart=1e-16, others=0.1, seeds=(0,)):
    runs = {
        weighted.BSP: [bsp or trained()] * len(seeds),
        weighted.WEIGHTED: [balanced or trained()] * len(seeds),
        weighted.NAIVE: [naive or trained(loss=2.0)] * len(seeds),
    }
    differences = {weighted.WEIGHTED: apart, weighted.NAIVE: others}
    return by_name(weighted._claims(runs, differences, seeds))


def test_weighted_claims_hold_for_figures_that_show_them():
    assert all(claim.holds for claim in weighted_claims().values())


@pytest.mark.parametrize(
    ("figures", "name", "why"),
    [
        ({"apart": 1e-3}, "weighted_equals_bsp", "rounding leaves less than 1e-10"),
        ({"balanced": LOWER, "apart": 2e-16}, "same_accuracy", "parameters are 2.0e-16 of"),
        ({"others": 1e-9}, "naive_differs", "more than 1e-04"),
        ({"naive": trained(loss=1.001)}, "naive_worse", "1.01 times BSP's loss"),
    ],
)
def test_weighted_claim_that_fails_blames_nothing_that_was_not_measured(figures, name, why):
    claims = weighted_claims(**figures)
    assert [each for each, claim in claims.items() if not claim.holds] == [name]
    assert why in claims[name].why
    assert "not known" in claims[name].why


def test_one_seed_is_not_called_several():
    one, three = (
        " ".join(claim.text for claim in weighted_claims(seeds=seeds).values())
        for seeds in ((0,), (0, 1, 2))
    )
    assert "every seed" not in one + three
    assert ("seeds" in one, "means over seeds 0, 1, 2" in three) == (False, True)


def run(case, accuracy, gap=2.0, migrated_at=(3,)):
    course = np.full(41, accuracy)
    return Run(case, 0, np.arange(41), course, course, migrated_at, 5, 5, gap)


def partition_claims(**figures):
    cases = {"mixed": MIXED, "skewed": SKEWED, "migrated": MIGRATED, "weighed": WEIGHED}
    ends = {"mixed": (0.5, 0.52), "skewed": (0.4, 0.42)}
    ends |= {"migrated": ends["mixed"], "weighed": ends["mixed"]}
    gap, migrated_at = figures.pop("gap", 2.0), figures.pop("migrated_at", (3,))
    runs = {
        cases[name]: [run(cases[name], end, gap, migrated_at) for end in some]
        for name, some in (ends | figures).items()
    }
    return by_name(partitions._claims(runs, threshold=2.0))


def test_claims_about_partitions_hold_for_figures_that_show_them():
    assert all(claim.holds for claim in partition_claims().values())


@pytest.mark.parametrize(
    ("figures", "name", "why"),
    [
        (
            {"migrated": (0.3, 0.32), "weighed": (0.3, 0.32), "migrated_at": ()},
            "as_good_as_mixed",
            "is -20.0 points, with a standard error of 0.0; with the first seed samples "
            "moved never",
        ),
        ({"skewed": (0.5, 0.52)}, "skew_costs", "less than 1 point counts as none"),
        ({"gap": 3.0}, "bounded", "samples moved after updates 3, of 40"),
        ({"weighed": (0.3, 0.52)}, "weights_do_too", "-10.0 points, with a standard error of 10.0"),
    ],
)
def test_claim_about_partitions_that_fails_has_figures_for_a_reason(figures, name, why):
    claims = partition_claims(**figures)
    assert [each for each, claim in claims.items() if not claim.holds] == [name]
    assert why in claims[name].why


@pytest.mark.parametrize(
    ("apart", "verdict"),
    [
        ((-0.1, 0.1, 0.0, -0.2, 0.1), ": it may be chance"),
        ((-0.1, -0.1, -0.1, -0.1, -0.2), ": hardly chance; what from is not known"),
        ((-0.1, -0.1, -0.1, -0.2), ""),
        ((-0.1, 0.1), ""),
        ((0.3 - 0.5, 0.32 - 0.52, 0.34 - 0.54, 0.36 - 0.56, 0.38 - 0.58), ""),
        ((0.0,) * 10, ""),
    ],
)
def test_chance_is_spoken_of_with_enough_seeds_that_differ(apart, verdict):
    found, _, said = partitions._chance(np.array(apart)).partition(":")
    assert found.startswith(f"the difference over {len(apart)} seeds is ")
    assert f":{said}" == (verdict or ":")


def test_what_skew_costs_is_told_by_the_figures():
    runs = {case: [run(case, end)] for case, end in ((MIXED, 0.5), (SKEWED, 0.45))}
    assert "5.0 after half of them" in partitions._skew(runs)


@pytest.mark.parametrize(("pictures", "updates"), [(10_000, 160), (50_000, 800)])
def test_partitions_are_gone_through_as_often_however_large(monkeypatch, pictures, updates):
    workload = SimpleNamespace(num_samples=pictures)
    monkeypatch.setattr(small_net, "cifar10", lambda path: workload)
    monkeypatch.setattr(Data, "cifar10", "somewhere")
    study = partitions._study(Settings())
    assert (study.workload, study.updates) == (workload, updates)
