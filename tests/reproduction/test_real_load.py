"""Two workers under real load: what is made of their times, and what is said where there are none.

The run itself is in the stage of the experiments.
"""

import inspect
import re
import sys
import tempfile

import numpy as np
import psutil
import pytest

from evenstep.predictors.narx import make_narx
from evenstep.simulator.load.load import usable_cores
from reproduction import real_load, real_load_run
from reproduction.experiment import Settings
from reproduction.parts import Parts
from reproduction.real_load import LEARNS_FROM, QUICK, RealLoad, for_real
from reproduction.real_load_run import (
    BEST_OF,
    BSP,
    CONTENDERS,
    NARX,
    TOTAL,
    changing_machines,
    run_real_load,
)
from tests.reproduction.tables import column


def quiet(share, text):
    pass


def block(seconds, cpu=(0.5, 0.5), iterations=3):
    # The first iteration of a block is not counted, so it may be anything.
    return {"times": [9.0] + [seconds] * (iterations - 1), "sizes": [96] * iterations, "cpu": cpu}


def made(*rounds, iterations=3):
    """Return a run of rounds, each the seconds of all contenders, behind one to warm up."""
    return {
        "rounds": [
            {"at": 1.0 * i} | {name: block(s, (0.2, 0.6), iterations) for name, s in each.items()}
            for i, each in enumerate([dict.fromkeys(CONTENDERS, 5.0), *rounds])
        ],
        "loads": [
            {
                "cores": [core],
                "cpu_wanted": 0.4,
                "cpu_got": 0.3,
                "levels": [{"cpu_wanted": w, "cpu_got": w - 0.1} for w in (0.2, 0.6)],
            }
            for core in (0, 1)
        ],
    }


SLOW, FAST = ({BSP: 1.0, NARX: narx, BEST_OF: 0.8} for narx in (1.1, 0.7))


def test_mean_is_over_bsps_without_warm_up():
    run = RealLoad(**made(SLOW, FAST))
    assert run.ratio(NARX) == pytest.approx(0.9)
    assert run.ratio(BEST_OF) == pytest.approx(0.8)


def test_narx_is_looked_at_from_where_it_learns():
    run = RealLoad(**made(SLOW, *[FAST] * 6, iterations=LEARNS_FROM // 2))
    assert run.learned == 2
    assert run.ratio(NARX, run.learned) == pytest.approx(0.7)


def test_narx_that_learns_too_late_is_not_looked_at():
    run = RealLoad(**made(SLOW, *[FAST] * 5, iterations=LEARNS_FROM // 2))
    assert run.learned is None
    assert run.ratio(NARX, run.learned) is None


def test_narx_learns_from_its_default():
    assert inspect.signature(make_narx).parameters["start"].default == LEARNS_FROM


def test_best_that_can_be_is_told_by_what_both_workers_get():
    # A third of the CPU on one of them: together they have twice what two of the slower have.
    run = made(SLOW, FAST)
    run["rounds"][2][BSP]["cpu"] = (0.5, 0.5)
    assert [RealLoad(**run).at_best(start) for start in (1, 2)] == pytest.approx([0.75, 1.0])


def test_machines_are_those_whose_load_changes_most():
    from evenstep.simulator.clusters.cluster_b import usage_trace

    chosen = [np.std(usage_trace(name).cpu) for name in changing_machines()]
    others = [np.std(usage_trace(f"m4.2xlarge-{i}").cpu) for i in range(17)]
    assert chosen == sorted(others, reverse=True)[:2]


def found(monkeypatch, *rounds, iterations=3):
    run = made(*rounds, iterations=iterations)
    monkeypatch.setattr(real_load, "run_real_load", lambda *arguments: run)
    return for_real(Settings(quick=True), quiet)


@pytest.mark.parametrize(("seconds", "holds"), [(0.8, True), (1.2, False)])
def test_claim_is_about_the_figures_and_says_why_not(monkeypatch, seconds, holds):
    each = dict.fromkeys(CONTENDERS, seconds) | {BSP: 1.0}
    result = found(monkeypatch, *[each] * 8, iterations=LEARNS_FROM)
    assert [(claim.name, claim.of, claim.holds) for claim in result.claims] == [
        ("real_best_of", "evenstep", holds),
        ("real_narx", "evenstep", holds),
    ]
    for claim in result.claims:
        assert f"{seconds:.2f}" in claim.text
        # A third of the CPU on one of them.
        assert bool(re.search(r"\b50% of BSP's .*\bat best\b", claim.why)) is not holds
    assert column(result.tables[0], "mean / BSP")[NARX] == pytest.approx(seconds)
    assert "which it got beyond" in result.tables[0].note


def test_what_has_not_learned_is_not_called_narx(monkeypatch):
    result = found(monkeypatch, FAST)
    assert [claim.name for claim in result.claims] == ["real_best_of"]
    schemes = list(column(result.tables[0], "mean"))
    assert schemes == [BSP, f"{NARX} ({real_load.UNLEARNED})", BEST_OF]
    assert [curve.label for curve in result.plots[0].curves] == schemes
    assert re.search(r"EMA .*\b500 iterations, .*\bhardly got further\b", result.tables[0].note)


def test_one_fast_round_is_not_most_of_them(monkeypatch):
    rounds = made({BSP: 9.0, NARX: 1.0, BEST_OF: 1.0}, *[{BSP: 1.0, NARX: 1.1, BEST_OF: 1.1}] * 2)
    monkeypatch.setattr(real_load, "run_real_load", lambda *arguments: rounds)
    claim = for_real(Settings(quick=True), quiet).claim("real_best_of")
    assert "0.29 of its time), and in most rounds (1 of 3)" in claim.text
    assert not claim.holds


def test_run_that_is_kept_is_not_made_again(monkeypatch, tmp_path):
    runs = []

    def follow(*how):
        runs.append(how)
        return made(FAST)

    monkeypatch.setattr(real_load, "run_real_load", follow)
    settings = Settings(quick=True, parts=Parts(tmp_path))
    assert for_real(settings, quiet) == for_real(settings, quiet)
    assert [how[:3] for how in runs] == [(QUICK.seconds, QUICK.speedup, QUICK.block)]


def test_one_core_is_a_reason(monkeypatch):
    monkeypatch.setattr(real_load_run, "usable_cores", lambda: [3])
    found = for_real(Settings(quick=True), quiet)
    reason = "Not for real: two workers take at least 2 cores that may be used, got 1."
    assert (found.tables, found.claims, found.differences) == ((), (), [reason])


def test_missing_package_is_an_error(monkeypatch):
    monkeypatch.setattr(real_load_run, "find_spec", lambda name: None if name == "psutil" else name)
    with pytest.raises(ModuleNotFoundError) as missing:
        for_real(Settings(quick=True), quiet)
    assert missing.value.name == "psutil"


def test_workers_that_do_not_start_are_a_reason(monkeypatch):
    monkeypatch.setattr(real_load_run, "usable_cores", lambda: [0, 1])
    monkeypatch.setattr(sys, "executable", "false")
    (said,) = for_real(Settings(quick=True), quiet).differences
    assert said.startswith("Not for real: ")
    # Of each of the two workers.
    assert said.endswith(": no reason given; no reason given.")


@pytest.mark.reproduction
@pytest.mark.timeout(900)
def test_cluster_b_is_also_run_for_real_or_the_reason_is_said(result):
    cluster_b = result("cluster-b")
    tables = [table for table in cluster_b.tables if table.kind == "measured"]
    said = [text for text in cluster_b.differences if text.startswith("Not for real: ")]
    assert len(tables) == 2 * (1 - len(said))
    if said:
        return
    times, loads = tables
    assert "The trace's 32 workers are two here" in times.note
    # Half a minute is too short for NARX to learn.
    narx = f"{NARX} ({real_load.UNLEARNED})"
    assert [row["scheme"] for row in times.rows] == [BSP, narx, BEST_OF]
    assert all(row["mean"] > 0 and row["iterations"] > 0 for row in times.rows)
    spread = column(times, "samples of worker 0")
    assert spread.pop(BSP) == [TOTAL // 2] * 2
    assert all(0 < least < most < TOTAL for least, most in spread.values())
    assert [row["machine of the trace"] for row in loads.rows] == changing_machines()
    assert all(0 < row["load got"] < 1 and 0 < row["c of the worker"] < 1 for row in loads.rows)
    real = [claim.name for claim in cluster_b.claims if claim.name.startswith("real")]
    assert real == ["real_best_of"]
    assert cluster_b.plots[-1].kind == "measured"


@pytest.mark.reproduction
@pytest.mark.timeout(300)
@pytest.mark.skipif(len(usable_cores()) < 2, reason="two workers take two cores")
def test_nothing_is_left_when_interrupted(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    running = []

    def interrupt(share, text):
        if text.startswith("for real"):
            running.extend(psutil.Process().children(recursive=True))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_real_load(60, 60, 2, interrupt)
    # Two workers, two loads, and what each load has started.
    assert len(running) >= 4
    _, alive = psutil.wait_procs(running, timeout=10)
    assert alive == []
    assert list(tmp_path.iterdir()) == []
