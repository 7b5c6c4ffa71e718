"""The tables of the package equal those that the script makes from the full data."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
TABLES = ROOT / "evenstep" / "simulator" / "clusters" / "data"
DATA = "EVENSTEP_DATA"
"""Names the folder of the full data, as scripts/build_clusters.py takes it."""


@pytest.mark.skipif(
    DATA not in os.environ, reason=f"{DATA} does not name the folder of the full data"
)
def test_tables_are_what_the_script_makes(tmp_path):
    script = ROOT / "scripts" / "build_clusters.py"
    subprocess.run(
        [sys.executable, str(script), os.environ[DATA], "--out", str(tmp_path)], check=True
    )
    made = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert made == {path.name: path.read_text() for path in TABLES.glob("*.csv")}


def test_every_table_has_a_source():
    source = (TABLES / "SOURCE.md").read_text()
    assert [path.name for path in TABLES.glob("*.csv") if path.name not in source] == []
