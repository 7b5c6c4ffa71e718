"""Claims about schemes on Cluster-A: figures that contradict them, and the reasons then given."""

import re
from dataclasses import replace

import pytest

from reproduction.claims import cluster_a as claims_of_a
from reproduction.claims.cluster_a import claims
from reproduction.end_to_end import ASP, BSP, QUICK, SSP, shown
from reproduction.experiment import Settings
from reproduction.experiments import cluster_a
from reproduction.staleness import conditions_table, where_it_costs
from reproduction.without_v100s import floor
from tests.figures import numbers_in
from tests.reproduction.made_up import all_models, settled, trained, trainings

SLOW_TO_LEARN = trained((0.1, 0.2, 0.4, 0.6, 0.8))
NEVER = trained((0.1, 0.1, 0.1))
FAST = {"alg_2": trained(pace=0.4), "balanced": trained(pace=0.3)}
PLAIN, OTHER = "1/n of the learning rate", "momentum"


def conditions(**others):
    return {PLAIN: trainings().runs, OTHER: trainings(**others).runs}


def asked(done=None, made=None, how=None):
    done = done or all_models(**FAST, asp=SLOW_TO_LEARN, ssp=SLOW_TO_LEARN)
    found = claims(done, made or settled(), how or conditions())
    return {claim.name: claim for claim in found}


def test_all_hold_where_figures_are_as_the_paper_says():
    assert [claim.text for claim in asked().values() if not claim.holds] == []


def test_papers_claims_are_asked_of_alg_2_and_ours_of_equal_finish():
    for name, claim in asked().items():
        if name.startswith("our_"):
            assert (claim.of, "equal_finish" in claim.text) == ("evenstep", True)
        else:
            assert claim.of == "paper"
            assert "equal_finish" not in claim.text
    assert len(asked()) == 14


@pytest.mark.parametrize(("who", "prefix"), [("alg_2", ""), ("balanced", "our_")])
def test_time_per_update_is_that_of_settled_runs_whatever_trainings_took(who, prefix):
    found = asked(made=settled(**{who: 0.95}))
    ssp, asp = (found[f"{prefix}{name}"] for name in ("beats_ssp", "beats_asp_with_inception"))
    assert not ssp.holds
    assert re.search(r"with CifarNet .*\b1\.06 of SSP's, .*\boracle takes 0\.44\b", ssp.why)
    assert "of BSP's" not in ssp.why
    assert not asp.holds
    assert "here 1.90" in asp.text
    assert re.match(r"an oracle takes 0\.80 of ASP's\b", asp.why)
    other = "" if prefix else "our_"
    assert found[f"{other}beats_ssp"].holds
    assert found[f"{other}beats_asp_with_inception"].holds


@pytest.mark.parametrize("prefix", ["", "our_"])
def test_v100s_that_make_no_difference_are_explained_by_the_slowest_worker(prefix):
    claim = asked(made=settled(without_v100s=0.4))[f"{prefix}less_heterogeneous"]
    assert not claim.holds
    assert "here 60% and 60%" in claim.text
    assert "an oracle gains 60% and 60%" in claim.why
    most = rf"more than {1 - floor(16):.0%} and {1 - floor(12):.0%}"
    assert re.search(rf"\bno batch sizes\b.* {most}", claim.why)


def test_texts_say_from_where_on_figures_count_as_different(monkeypatch):
    monkeypatch.setattr(claims_of_a, "_LESS", 0.05)
    monkeypatch.setattr(claims_of_a, "MORE", 1.5)
    found = asked()
    for name in ("less_heterogeneous", "our_less_heterogeneous"):
        assert re.search(r"\bmore than 5 points\b", found[name].text)
    assert re.search(r"\bmore than 1\.5 times\b", found["asp_needs_more_updates"].text)


@pytest.mark.parametrize(("who", "prefix"), [("alg_2", ""), ("balanced", "our_")])
def test_later_than_bsp_is_said_with_what_it_took(who, prefix):
    late = trained((0.1, 0.2, 0.4, 0.8), pace=0.8)
    found = asked(all_models(**(FAST | {who: late}), asp=NEVER, ssp=NEVER))
    for name in ("before_bsp", "first_of_all"):
        claim = found[f"{prefix}{name}"]
        assert not claim.holds
        assert re.search(r"took 1\.2 of BSP's .*\b1\.5 times .*; with ResNet-32", claim.why)
        assert " BSP took" not in claim.why
    assert not found[f"{prefix}same_updates"].holds
    assert "with CifarNet it needs 1.5 times as many" in found[f"{prefix}same_updates"].why


def test_equal_finish_behind_alg_2_is_not_the_fastest_of_the_bsp_kinds():
    claim = asked(all_models(alg_2=trained(pace=0.4), balanced=trained(pace=0.5)))[
        "our_fastest_of_bsp_kinds"
    ]
    assert not claim.holds
    assert "with CifarNet equal_finish took 0.5 of BSP's time, for 1 times its" in claim.why
    assert "Alg. 2 took 0.4 of BSP's time, for 1 times its updates" in claim.why


def test_who_was_first_is_who_is_blamed():
    late = FAST | {"alg_2": trained(pace=1.5)}
    claim = asked(all_models(**late, asp=trained(pace=0.2), ssp=trained(pace=0.1)))["first_of_all"]
    assert not claim.holds
    with_cifarnet, with_resnet32, *_ = claim.why.split("; ")
    assert re.match(
        r"with CifarNet Alg\. 2 took 1\.5 of BSP's .*, SSP took 0\.1 of BSP's", with_cifarnet
    )
    # Of BSP's time, and of its updates, after the number in the name.
    assert numbers_in(with_cifarnet) == [2, 1.5, 1, 0.1, 1]
    assert with_resnet32.startswith("with ResNet-32 Alg. 2")
    assert "ASP" not in claim.why


def test_as_late_as_another_is_not_first():
    late = FAST | {"alg_2": trained(pace=0.4)}
    assert not asked(all_models(**late, asp=trained(pace=0.4)))["first_of_all"].holds


def test_where_bsp_does_not_get_there_nobody_is_first():
    claim = asked(all_models(target=0.9))["first_of_all"]
    assert not claim.holds
    assert re.match(r"with CifarNet BSP and Alg\. 2 did not reach\b.*; with", claim.why)


def test_who_never_gets_there_is_not_first():
    done = [trainings("cifarnet", alg_2=NEVER), trainings("resnet32", **FAST)]
    found = asked(done)
    for name in ("first_of_all", "before_bsp", "same_updates"):
        assert not found[name].holds
        assert "Alg. 2 did not reach" in found[name].why
        assert "ResNet-32" not in found[name].why
    missed = r"; with CifarNet Alg\. 2 did not reach\b.*\)\.$"
    assert re.search(rf"\(here 0\.4 [^;]*{missed}", found["before_bsp"].text)
    assert re.search(rf"\(here 1 times [^;]*{missed}", found["same_updates"].text)


def test_ratio_that_there_is_not_blames_nobody_who_got_there():
    at_once = trained((0.9, 0.9))
    claim = asked(all_models(target=0.8, bsp=at_once, alg_2=at_once))["before_bsp"]
    assert not claim.holds
    assert re.search(r"\bno ratio\b.*\bBSP's", claim.why)
    assert "did not reach" not in claim.text + claim.why


def test_staleness_that_costs_nothing_anywhere_is_not_said_to_cost():
    claim = asked(all_models(**FAST))["asp_needs_more_updates"]
    assert not claim.holds
    assert "with CifarNet it needs 1 times as many" in claim.why
    assert re.search(r"\bnor .*\bmore than 1\.1 times BSP's\b", claim.why)


@pytest.mark.parametrize(
    ("run", "said"), [(NEVER, "it does not get there"), (SLOW_TO_LEARN, "it needs 2 times as many")]
)
def test_condition_in_which_staleness_costs_is_named(run, said):
    claim = asked(all_models(**FAST), how=conditions(asp=run))["asp_needs_more_updates"]
    assert not claim.holds
    assert f"with momentum {said}" in claim.why
    assert f"with {PLAIN}" not in claim.why


@pytest.mark.parametrize(("target", "holds"), [(0.8, True), (0.9, False)])
def test_nobody_needs_more_updates_than_bsp_where_bsp_did_not_get_there(target, holds):
    claim = asked(all_models(target=target, asp=NEVER))["asp_needs_more_updates"]
    assert claim.holds is holds
    assert bool(re.search(r"BSP did not reach .*\bCifarNet", claim.why)) is not holds


def test_target_of_a_condition_is_near_its_own_bsp():
    better = trained((0.1, 0.6, 0.9))
    how = conditions(bsp=better, asp=trained((0.1, 0.6, 0.8)), ssp=better)
    rows = conditions_table(trainings(), how).rows
    assert [row["target"] for row in rows] == pytest.approx([0.95 * 0.8, 0.95 * 0.9])
    assert [row["ASP: updates / BSP"] for row in rows] == [1.0, "not reached by ASP"]
    assert [row["SSP: updates / BSP"] for row in rows] == [1.0, 1.0]
    assert re.search(r"with momentum .*\bnot get there", where_it_costs(how))


def test_who_missed_a_target_is_said():
    runs = {BSP: [trained()], ASP: [trained((0.1, 0.2, 0.9))], SSP: [NEVER]}
    said = {label: shown(runs, label, "updates", 0.9) for label in runs}
    assert said == {
        BSP: "not reached by BSP", ASP: "not reached by BSP", SSP: "not reached by BSP and SSP"
    }  # fmt: skip
    assert shown(runs, SSP, "time", 0.8) == "not reached by SSP"
    assert shown(runs, ASP, "time", 0.8) == 1.0


def test_seeds_are_those_of_trainings_and_of_settled_runs(monkeypatch):
    done = replace(trainings("inception_v3"), scale=replace(QUICK, seeds=(3, 0)))
    made = replace(settled(), seeds=(0, 1, 2))
    monkeypatch.setattr(cluster_a, "trainings", lambda settings, model, progress: done)
    monkeypatch.setattr(cluster_a, "stale", lambda settings, done, progress: conditions())
    monkeypatch.setattr(cluster_a, "steady_state", lambda settings, progress: made)
    result = cluster_a.run(Settings(), lambda share, text: None)
    assert result.seeds == [0, 1, 2, 3]
    assert result.tables[2].note.endswith("Seeds of the trainings: 3, 0.")


@pytest.mark.parametrize(
    ("model", "how", "said"),
    [
        ("inception_v3", {"is_papers": True}, "(the paper's on ImageNet)"),
        ("resnet32", {"is_complete": True}, "(scaled; BSP did not reach the paper's, 0.86)"),
        ("resnet32", {}, "(scaled; the paper's is 0.86)"),
    ],
)
def test_title_says_whose_target_it_is_and_what_was_trained(model, how, said):
    done = replace(trainings(model), **how)
    title = cluster_a._table(done).title
    assert said in title
    assert "training a net on pictures" in title
    assert "a net on pictures" in cluster_a._plot([done], "updates").title


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"is_complete": True}, ["In 20 updates BSP did not reach the paper's target with ResNet"]),
        ({}, ["Without all of CIFAR-10"]),
        ({"is_complete": True, "is_papers": True}, []),
    ],
)
def test_reason_for_another_target_is_the_one_there_is(how, said):
    found = cluster_a._targets([replace(trainings(), **how)])
    assert len(found) == len(said)
    assert all(text.startswith(start) for text, start in zip(found, said, strict=True))
