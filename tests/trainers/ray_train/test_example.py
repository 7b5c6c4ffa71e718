"""The example of Ray Train: few lines away from its stock form, and the same training."""

from __future__ import annotations

import difflib
import re
import runpy
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainers.ray_train.local import ROOT

pytestmark = pytest.mark.timeout(300)

STOCK, BALANCED = ROOT / "examples/ray_train_stock.py", ROOT / "examples/ray_train.py"


def test_five_lines_make_the_difference():
    stock, balanced = (path.read_text().splitlines() for path in (STOCK, BALANCED))
    _, _, *changes = difflib.unified_diff(stock, balanced, n=0)
    assert sum(line.startswith("+") for line in changes) == 5
    assert sum(line.startswith("-") for line in changes) == 3


def test_page_shows_the_difference():
    stock, balanced = (path.read_text().splitlines(keepends=True) for path in (STOCK, BALANCED))
    changes = difflib.unified_diff(stock, balanced, n=0)
    changed = [line for line in changes if re.match(r"[+-] |[+-]from", line)]
    [shown] = re.findall(r"```diff\n(.*?)```", (ROOT / "docs/ray_train.md").read_text(), re.DOTALL)
    assert shown == "".join(changed)


def test_example_learns_to_read_digits_as_its_stock_form_does(
    local_ray, tmp_path, monkeypatch, capsys
):
    states = []
    for path in (STOCK, BALANCED):
        storage = tmp_path / path.stem
        monkeypatch.setattr("sys.argv", [path.name, "--storage", str(storage)])
        runpy.run_path(str(path), run_name="__main__")
        printed = capsys.readouterr().out
        [percent] = re.findall(r"^accuracy ([\d.]+)% after 5 epochs$", printed, re.MULTILINE)
        assert float(percent) > 90
        states.append(newest_state(storage))
    stock, balanced = states
    assert balanced["epoch"] == stock["epoch"] == 4
    for name, expected in stock["model"].items():
        torch.testing.assert_close(balanced["model"][name], expected, rtol=1e-2, atol=1e-4)


def newest_state(storage: Path) -> Any:
    newest = max(storage.glob("*/checkpoint_*/state.pt"), key=lambda path: path.stat().st_mtime)
    return torch.load(newest, weights_only=False)
