"""Claims hold for what is shown, not because nothing was reached or curves were made so."""

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from evenstep.errors import EvenstepError
from reproduction import memory_group
from reproduction.experiment import Settings, Skipped
from reproduction.experiments import gpu_curve, slowdown

SETTINGS = Settings(quick=True)


def quiet(share, text):
    pass


def test_what_was_derived_is_labelled_and_proves_nothing():
    found = gpu_curve.run(SETTINGS, quiet)
    labels = [curve.label for curve in found.plots[0].curves]
    assert labels == ["V100", "M60", "K80", "K520 (derived)"]
    measured = {(c.model, c.gpu): c for c in gpu_curve.read_curves(None)}
    key = "inception_v3", "K520"
    measured[key] = replace(measured[key], seconds=measured[key].seconds / 1000)
    assert {claim.name: claim.holds for claim in gpu_curve._claims(measured)}["order"]


def test_worker_that_takes_too_long_is_a_reason_not_a_crash(monkeypatch, tmp_path):
    def too_long(command, timeout, **how):
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(subprocess, "run", too_long)
    with pytest.raises(EvenstepError, match=r"\bin group .*\b80 s$"):
        slowdown._speed("group", tmp_path / "rows", 1, 1.0)


def test_slowdown_is_skipped_where_its_file_cannot_be_written(monkeypatch):
    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    monkeypatch.setattr(slowdown, "under_quotas", lambda *arguments: {1.0: 1.0})
    with pytest.raises(Skipped, match=r"\b64 MiB\b.*No space left"):
        slowdown.run(SETTINGS, quiet)


def test_group_whose_memory_cannot_be_limited_is_removed(monkeypatch, tmp_path):
    def refuse(*arguments, **how):
        raise PermissionError(13, "Permission denied")

    (tmp_path / "memory").mkdir()
    (tmp_path / "memory" / "memory.limit_in_bytes").touch()
    monkeypatch.setattr(Path, "write_text", refuse)
    with (
        pytest.raises(EvenstepError, match=r"memory cannot be limited\b.*Permission denied"),
        memory_group.memory_group(2**20, tmp_path),
    ):
        pass
    assert [path.name for path in (tmp_path / "memory").iterdir()] == ["memory.limit_in_bytes"]
