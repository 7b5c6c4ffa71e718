"""Claims about runs on traces: each can fail, and then says why, by its own figures."""

import pytest

from evenstep.reproduce.claims_on_b import BACKUP, FLEXRR, SSP, Ratios, claims_on_b
from evenstep.reproduce.loaded_run import NARX

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
    assert claim.why.startswith(f"it takes {ratio:.3f} of BSP's time with ResNet-32; ")
    assert "SVM" not in claim.why


def test_reason_of_redundant_execution_is_by_the_trace():
    why = on_b(backup=0.5)["backup_marginal"].why
    # The machines that come along.
    assert "the slowest worker takes 4.5 times as long as the median one" in why
    assert "the third slowest 2.8 times" in why


def test_reason_of_flexrr_names_the_models_and_where_it_changes():
    claim = on_b(flexrr=0.35)["beats_flexrr"]
    assert claim.holds is False
    assert "flexrr with ResNet-32 (0.350, against 0.400)" in claim.why
    assert "SVM" not in claim.why
    assert "from faster to slower at overheads of about 5%" in claim.why


@pytest.mark.parametrize("overheads", [{0.0: 0.1, 0.1: 0.2}, {0.0: 0.5, 0.1: 0.6}])
def test_overhead_that_does_not_decide_says_what_there_is(overheads):
    claim = on_b(overheads)["overhead_decides"]
    assert claim.holds is False
    low, high = overheads.values()
    assert f"at overheads of 0% to 10% FlexRR has {low:.3f} to {high:.3f}" in claim.why
    assert "LB-BSP 0.400" in claim.why
