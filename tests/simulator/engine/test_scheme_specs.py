"""Contenders: lists of schemes on a command line."""

import pytest

from evenstep.errors import InvalidSetting
from evenstep.simulator.engine.scheme_specs import SchemeSpec, parse_scheme_specs

BSP = SchemeSpec("bsp", "bsp")
SEQUENTIAL = SchemeSpec("sequential-bsp", "bsp", sequential=True)


def test_schemes_are_read_in_their_order():
    assert parse_scheme_specs("asp,ssp:bound=3,backup:backups=2,like=M60,bsp") == [
        BSP,
        SchemeSpec("asp", "asp"),
        SchemeSpec("ssp:bound=3", "ssp:bound=3"),
        SchemeSpec("backup:backups=2,like=M60", "bsp", redundant=True, backups=2, like="M60"),
    ]


def test_bsp_is_always_included():
    assert parse_scheme_specs("asp")[0] == parse_scheme_specs("bsp")[0] == BSP


def test_sequential_bsp_runs_only_if_it_is_named():
    _, flexrr = parse_scheme_specs("flexrr:monitoring=0.1,moving=0.05")
    assert flexrr.label == flexrr.scheme == "flexrr:monitoring=0.1,moving=0.05"
    assert flexrr.compares_with == SEQUENTIAL.compares_with == "sequential-bsp"
    assert parse_scheme_specs("flexrr,sequential-bsp")[2] == SEQUENTIAL


LB_BSP = {
    "lb-bsp": (None, None, True),
    "lb-bsp:stepwise": ("stepwise", None, True),
    "lb-bsp:unweighted": (None, None, False),
    "lb-bsp:stepwise:step=3,literal=true,unweighted": ("stepwise:step=3,literal=true", None, False),
    "lb-bsp:even+every_n:n=3,predictor=ema:alpha=0.5": ("even+every_n:n=3", "ema:alpha=0.5", True),
    "lb-bsp:weighted,predictor=narx": (None, "narx", True),
}


@pytest.mark.parametrize(("spec", "meant"), LB_BSP.items(), ids=LB_BSP)
def test_lb_bsp_has_a_policy_a_predictor_and_weights(spec, meant):
    policy, predictor, weighted = meant
    _, contender, _ = parse_scheme_specs(f"{spec},asp")
    assert contender == SchemeSpec(spec, "bsp", policy, predictor, weighted)


def test_word_makes_a_setting_where_there_was_none():
    assert [each.label for each in parse_scheme_specs("lb-bsp,unweighted,lb-bsp")] == [
        "bsp",
        "lb-bsp:unweighted",
        "lb-bsp",
    ]


MISTAKES = {
    "": "scheme must be one of bsp, asp, ssp, backup, flexrr, lb-bsp, sequential-bsp, got ''",
    "bsp,async": "scheme must be one of bsp, asp, ssp, backup, flexrr, lb-bsp, sequential-bsp, "
    "got 'async'",
    "bsp:backups=2": "bsp has no settings, got 'backups=2' (backups go with backup)",
    "ssp:bound=0": "bound of ssp must be >= 1, got 0",
    "ssp:bond=3": "a setting of 'ssp' must be one of bound, got 'bond' (did you mean 'bound'?)",
    "backup:backups=0": "backups of backup must be >= 1, got 0",
    "flexrr:share=2": "share of flexrr must be a fraction above 0, got 2",
    "asp,asp": "schemes must be given once each, got 'asp' twice",
    "lb-bsp:even,weighted,unweighted": "settings of lb-bsp must be given once each, "
    "got a second 'unweighted'",
}


@pytest.mark.parametrize(("text", "message"), MISTAKES.items(), ids=MISTAKES)
def test_invalid_lists_are_refused(text, message):
    with pytest.raises(InvalidSetting) as error:
        parse_scheme_specs(text)
    assert str(error.value) == message
