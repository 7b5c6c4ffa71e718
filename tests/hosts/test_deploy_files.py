"""The files of deploy/ that start a training, on two hosts, with stand-ins for what runs them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.hosts.cluster import NAMES
from tests.hosts.network import ROOT, SWITCHED

pytestmark = [
    pytest.mark.hosts,
    pytest.mark.distributed,
    pytest.mark.timeout(150),
]

DEPLOY, EXAMPLES = ROOT / "deploy", ROOT / "examples"
PATH = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
"""With torchrun and the interpreter of these tests."""
RESULT = "% after 1 epochs"
"""What worker 0, and no other, prints at the end."""


def test_slurm_starts_a_torchrun_on_each_node_and_they_find_each_other(cluster, tmp_path):
    entering = " ".join(f'"{" ".join(cluster.hosts[name].command())}"' for name in NAMES)
    stand_ins = {
        "scontrol": 'test "$*" = "show hostnames nodes" && printf "%s\\n" a b',
        "srun": f"""
while [[ $1 == --* ]]; do shift; done
for enter in {entering}; do $enter "$@" & started+=($!); done
for one in "${{started[@]}}"; do wait "$one" || exit; done""",
    }
    for name, text in stand_ins.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{text}\n")
        (tmp_path / name).chmod(0o755)
    done = subprocess.run(
        ["bash", DEPLOY / "slurm.sbatch", "examples/elastic.py", "--epochs=1",
         f"--checkpoint={tmp_path / 'elastic.pt'}"],
        env={**os.environ, "PATH": f"{tmp_path}:{PATH}", "SLURM_JOB_NODELIST": "nodes",
             "SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_ID": "4711", "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, timeout=90, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count(RESULT) == 1


def test_skypilot_runs_where_the_name_of_a_machine_means_loopback(cluster, tmp_path):
    task = yaml.safe_load((DEPLOY / "skypilot.yaml").read_text())
    (tmp_path / "run").write_text(task["run"].replace("--checkpoint", "--epochs=1 --checkpoint"))
    (tmp_path / "evenstep").symlink_to(Path(sys.prefix))
    addresses = [f"{SWITCHED}.{number}" for number in (1, 2)]
    for name in NAMES:
        # As in most images of Debian.
        (tmp_path / f"hosts-{name}").write_text(f"127.0.0.1 localhost\n127.0.1.1 {name}\n")
        cluster.hosts[name].run("mount", "--bind", tmp_path / f"hosts-{name}", "/etc/hosts")
    variables = {
        "HOME": str(tmp_path), "SKYPILOT_NODE_IPS": "\n".join(addresses),
        "SKYPILOT_NUM_NODES": "2", "SKYPILOT_NUM_GPUS_PER_NODE": "0", "SKYPILOT_TASK_ID": "sky-1",
        **task["envs"], "CHECKPOINT": str(tmp_path / "elastic.pt"),
    }  # fmt: skip
    started = [
        cluster.start(name, "bash", tmp_path / "run", **variables, SKYPILOT_NODE_RANK=str(rank))
        for rank, name in enumerate(NAMES)
    ]
    assert [cluster.ends(process) for process in started] == [0, 0], cluster.out()
    assert cluster.out().count(RESULT) == 1


def test_the_command_of_a_train_job_needs_no_more_than_the_variables_of_its_runtime(
    cluster, tmp_path
):
    trainer = yaml.safe_load((DEPLOY / "trainjob.yaml").read_text())["spec"]["trainer"]
    places = {"/workspace": str(EXAMPLES), "/checkpoints": str(tmp_path)}
    words = [*trainer["command"], *trainer["args"], "--epochs=1"]
    for inside, here in places.items():
        words = [word.replace(inside, here) for word in words]
    variables = {
        **{one["name"]: one["value"] for one in trainer["env"]}, "PATH": PATH,
        "PET_NNODES": str(trainer["numNodes"]), "PET_MASTER_ADDR": "a", "PET_MASTER_PORT": "29400",
        "PET_NPROC_PER_NODE": str(trainer["numProcPerNode"]),
    }  # fmt: skip
    started = [
        cluster.start(name, *words, **variables, PET_NODE_RANK=str(rank))
        for rank, name in enumerate(NAMES)
    ]
    assert [cluster.ends(process) for process in started] == [0, 0], cluster.out()
    assert cluster.out().count(RESULT) == 1
