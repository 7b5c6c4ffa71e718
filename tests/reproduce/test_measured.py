"""What is measured on this machine: figures are there and make sense, whatever they are."""

import sys

import pytest

from evenstep.errors import EvenstepError
from evenstep.reproduce.experiment import Settings, Skipped
from evenstep.reproduce.experiments import overhead, slowdown
from evenstep.reproduce.memory_group import memory_group

pytestmark = [pytest.mark.reproduce, pytest.mark.timeout(900)]


def test_cpu_curves_are_measured_and_fitted(result):
    curve = result("cpu-curve")
    rows = curve.tables[0].rows
    assert [row["model"] for row in rows] == ["ResNet-32", "CifarNet"]
    assert all(row["ms of CPU per sample"] > 0 for row in rows)
    assert all(0 < row["part that is computation"] < 1 for row in rows)
    assert {claim.name for claim in curve.claims} == {"linear", "mostly_computation"}
    assert {table.kind for table in curve.tables} == {"measured"}


def test_overhead_is_measured_through_a_manager(result):
    rows = result("overhead").tables[0].rows
    assert [row["workers"] for row in rows] == [32, 64, 96]
    for row in rows:
        assert 0 < row["5th percentile"] <= row["95th percentile"]
        assert row["both, share of the iteration"] > 0


def test_overhead_is_skipped_where_no_manager_can_be_run(monkeypatch):
    monkeypatch.setattr(sys, "executable", "echo")
    with pytest.raises(Skipped, match="evenstep manager must listen, got '-m evenstep manager"):
        overhead.run(Settings(quick=True), lambda share, text: None)


def test_slowdown_is_measured_or_the_reason_is_said(result):
    try:
        found = result("slowdown")
    except Skipped as reason:
        assert "cannot be" in str(reason)
        return
    named = {table.title for table in found.tables}
    assert named <= {"Speed with less CPU", "Speed with less memory"}
    missing = 2 - len(named)
    assert sum(text.startswith("Skipped: ") for text in found.differences) == missing


def test_slowdown_is_skipped_where_nothing_may_be_limited(monkeypatch):
    def refuse(*arguments):
        raise EvenstepError("it is not allowed")

    monkeypatch.setattr(slowdown, "under_quotas", refuse)
    monkeypatch.setattr(slowdown, "under_limits", refuse)
    with pytest.raises(Skipped, match="it is not allowed; it is not allowed"):
        slowdown.run(Settings(quick=True), lambda share, text: None)


def test_memory_is_not_limited_where_there_is_no_controller(tmp_path):
    with (
        pytest.raises(EvenstepError, match="memory cannot be limited here"),
        memory_group(2**20, tmp_path),
    ):
        pass
    assert list(tmp_path.iterdir()) == []
