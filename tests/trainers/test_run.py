"""`evenstep run`: stock scripts are balanced with no line changed, or run exactly as they are."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from evenstep.errors import InvalidSetting
from evenstep.run.launch import divide, launch
from tests.distributed.workers import Workers
from tests.trainers.comparing import TABLE, above_the_optimum, assert_same
from tests.trainers.running import SCRIPTS, run, saved, sizes_in
from tests.training.cycle import cycle

TIMEOUT = 100.0
BALANCED = "evenstep: balanced 1 loader, total 16, 2 workers\n"
NOTHING = "evenstep: balanced nothing, the script runs as it would without: "

BALANCED_LOOPS = [
    "without_set_epoch", "left_early", "fetching_ahead", "fetching_two_ahead",
    "fetching_two_copies_ahead", "two_passes_on_copies_fetched_ahead", "skipping", "accumulating",
    "loader_of_each_epoch", "evaluation_with_gradients", "evaluation_first",
    "evaluation_on_one_worker", "second_loader_of_other_size", "second_loader_with_a_sum",
    "static_graph", "compiled", "unshuffled", "loading_by_fork",
]  # fmt: skip
REFUSED_LOOPS = {
    "sum_of_losses": "a loss must be a mean over the samples of this worker, got a sum",
    "divided_by_a_number": "got what may be one by chance",
    "weights_of_classes": "got another loss, as it is a mean over targets",
    "ignored_on_one_worker": "got another loss, as it is a mean over",
    "no_sampler": "must have a DistributedSampler, .* got a BatchSampler of a RandomSampler",
    "batch_sampler": "batches of a DataLoader must be those of torch's BatchSampler.* Reversed",
    "stream": "the data set must have an index, got a stream, Stream",
    "joined": r"must be trained without join\(\)",
    "sync_batch_norm": "must not have SyncBatchNorm in mode 'balanced'",
    "own_hook": "must not have a communication hook yet",
    "two_models": "a loop must train one model, got 2",
    "two_loaders": "must come from one DataLoader, got 2",
    "own_loader": "the loader must be torch's DataLoader, got a Doubled",
    "no_loader": "must come from one DataLoader, got none",
    "sharded": "no model in DistributedDataParallel was trained.*ShardedBalancer",
    "accelerated": "the loop must be the script's own, got one of accelerate: use evenstep.acc",
    "by_hugging_face": "the loop must be the script's own, got one of transformers: use evenst",
    "by_lightning": "the loop must be the script's own, got one of lightning: use evenstep.lig",
    "single_iteration": "no model in DistributedDataParallel was trained for two iterations",
}


def train(workers: Workers, folder: Path, script: str, *arguments: str, **settings: Any) -> Any:
    """Run a script, with settings under `evenstep run`; return its result and stderr."""
    out = folder / f"{'balanced' if settings else 'stock'}.pt"
    is_hydra = script == "mingpt.py"
    how = [f"out={out}", f"hydra.run.dir={folder}"] if is_hydra else ["--out", str(out)]
    said = workers.run(
        run, timeout=TIMEOUT, script=script, arguments=[*arguments, *how],
        settings=settings or None,
    )  # fmt: skip
    return saved(out), said


def compare(workers: Workers, folder: Path, script: str, *arguments: str) -> list[list[int]]:
    """Check that balanced training gives what stock training does; return its batch sizes."""
    log = folder / "run.jsonl"
    settings = {"policy": cycle(*TABLE), "log": str(log), "summary": False}
    stock, _ = train(workers, folder, script, *_snapshot(script, folder / "0"), *arguments)
    balanced, said = train(
        workers, folder, script, *_snapshot(script, folder / "1"), *arguments, **settings
    )
    assert said == [BALANCED, ""]
    assert_same(balanced, stock)
    return sizes_in(log)


def _snapshot(script: str, path: Path) -> list[str]:
    return ["--snapshot", str(path)] if script == "tutorial.py" else []


@pytest.mark.parametrize(
    ("script", "arguments"), [("tutorial.py", ["3", "1"]), ("mingpt.py", []), ("imagenet.py", [])]
)
def test_real_scripts_are_balanced_and_give_the_parameters_of_stock_ones(
    workers, tmp_path, script, arguments
):
    sizes = compare(workers, tmp_path, script, *arguments)
    # Iteration 0 is before the balancer, and iteration 1 has even sizes.
    assert len(sizes) == 29
    assert sizes[:5] == [[8, 8], [4, 12], [15, 1], [9, 7], [1, 15]]


@pytest.mark.parametrize("name", BALANCED_LOOPS)
def test_habits_of_scripts_are_balanced_and_give_the_parameters_of_stock_ones(
    workers, tmp_path, name
):
    sizes = compare(workers, tmp_path, "loops.py", name)
    assert len({tuple(both) for both in sizes}) > 3


@pytest.mark.parametrize("name", REFUSED_LOOPS)
def test_what_is_refused_runs_exactly_as_stock(workers, tmp_path, name):
    stock, _ = train(workers, tmp_path, "loops.py", name)
    settings = {"policy": cycle(*TABLE)}
    refused, said = train(workers, tmp_path, "loops.py", name, **settings)
    assert said[1] == ""
    assert re.fullmatch(f"{re.escape(NOTHING)}.*{REFUSED_LOOPS[name]}.*\n", said[0])
    assert torch.equal(refused, stock)


def test_balancing_ends_where_a_second_model_is_made(workers, tmp_path):
    stock, _ = train(workers, tmp_path, "loops.py", "second_model_later")
    settings = {"policy": cycle(*TABLE), "summary": False}
    balanced, said = train(workers, tmp_path, "loops.py", "second_model_later", **settings)
    end = "evenstep: balances no further, as the script has made a second model\n"
    assert said == [BALANCED + end, ""]
    assert_same(balanced, stock)


@pytest.mark.parametrize(
    ("name", "loss"), [("sum_of_losses", "sum"), ("divided_by_a_number", "mean")]
)
def test_a_declared_loss_is_balanced(workers, tmp_path, name, loss):
    stock, _ = train(workers, tmp_path, "loops.py", name)
    settings = {"policy": cycle(*TABLE), "loss": loss, "summary": False}
    balanced, said = train(workers, tmp_path, "loops.py", name, **settings)
    assert said == [BALANCED, ""]
    assert_same(balanced, stock)


def test_batch_norm_is_balanced_with_a_note(workers, tmp_path):
    settings = {"policy": cycle((8, 8), (4, 12), (13, 3)), "summary": False}
    _, said = train(workers, tmp_path, "loops.py", "normalised", **settings)
    assert said[0].startswith(f"{BALANCED}evenstep: note: the model has BatchNorm")


def test_mode_off_runs_exactly_as_stock(workers, tmp_path):
    stock, _ = train(workers, tmp_path, "loops.py", "unshuffled")
    off, said = train(workers, tmp_path, "loops.py", "unshuffled", mode="off")
    assert said == [f"{NOTHING}mode is off\n", ""]
    assert torch.equal(off, stock)


def test_observing_keeps_stock_batches_and_says_what_balancing_would_save(workers, tmp_path):
    # Gradients are those of the same samples on the same workers, also for sums.
    stock, _ = train(workers, tmp_path, "loops.py", "sum_of_losses")
    log = tmp_path / "run.jsonl"
    settings = {"mode": "observe", "log": str(log)}
    observed, said = train(workers, tmp_path, "loops.py", "sum_of_losses", **settings)
    assert said[0].startswith("evenstep: observes 1 loader, total 16, 2 workers\n")
    assert "evenstep (observe only): an iteration took " in said[0]
    assert torch.equal(observed, stock)
    assert sizes_in(log) == [*[[8, 8]] * 8, [3, 3], *[[8, 8]] * 9, [3, 3]]


def test_a_script_resumes_from_its_snapshot(workers, tmp_path):
    stock, _ = train(workers, tmp_path, "tutorial.py", "3", "1", "--snapshot", str(tmp_path / "0"))
    resumes = ["--snapshot", str(tmp_path / "1")]
    settings = {"policy": cycle(*TABLE), "summary": False}
    train(workers, tmp_path, "tutorial.py", "1", "1", *resumes, **settings)
    train(workers, tmp_path, "tutorial.py", "1", "1", *resumes)
    stock = _stock_from(workers, tmp_path, tmp_path / "1")
    balanced, said = train(workers, tmp_path, "tutorial.py", "3", "5", *resumes, **settings)
    assert said == [BALANCED, ""]
    assert_same(balanced, stock)


def _stock_from(workers: Workers, folder: Path, snapshot: Path) -> torch.Tensor:
    """Return what a stock script makes of a snapshot, which it leaves as it is."""
    copy = folder / "copy"
    copy.write_bytes(snapshot.read_bytes())
    result, _ = train(workers, folder, "tutorial.py", "3", "1", "--snapshot", str(copy))
    return torch.as_tensor(result)


def test_an_unequal_pair_reaches_sizes_near_the_optimum(workers, tmp_path):
    log = tmp_path / "run.jsonl"
    settings = {"log": str(log)}
    speeds = ["--seconds-per-sample", "0.006,0.002", "--samples", "512"]
    arguments = ["2", "9", "--snapshot", str(tmp_path / "0"), *speeds]
    _, said = train(workers, tmp_path, "tutorial.py", *arguments, **settings)
    assert said[0].startswith(BALANCED)
    late = sizes_in(log)[-16:]
    assert sum(above_the_optimum(np.array(both)) for both in late) / len(late) <= 1.10


# Processes of their own.


def evenstep(*arguments: str, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the command in two workers on this machine."""
    launcher = ["--standalone", "--local-addr", "127.0.0.1", "--nproc-per-node", "2"]
    own = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", **variables}
    return subprocess.run(
        [sys.executable, "-m", "evenstep", "run", *launcher, *arguments],
        cwd=cwd, env={**os.environ, **own}, stdin=subprocess.DEVNULL, text=True,
        capture_output=True, timeout=TIMEOUT,
    )  # fmt: skip


def test_command_starts_torchrun_and_options_win_over_variables(workers, tmp_path):
    script = SCRIPTS / "loops.py"
    out = tmp_path / "balanced.pt"
    done = evenstep(
        "--shares", "1,3", str(script), "loading_by_spawn", "--out", str(out), cwd=tmp_path,
        EVENSTEP_SHARES="3,1", EVENSTEP_LOG="run.jsonl",
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.startswith(BALANCED)
    stock, _ = train(workers, tmp_path, "loops.py", "loading_by_fork")
    assert_same(saved(out), stock)
    assert sizes_in(tmp_path / "run.jsonl")[:3] == [[8, 8], [4, 12], [4, 12]]


ENDS = {
    "exit": "sys.exit(3)",
    "end": "",
    "interrupt": "os.kill(os.getpid(), signal.SIGINT); time.sleep(5)",
    "error": "1 / 0",
}


@pytest.mark.parametrize("end", ENDS)
def test_a_script_runs_and_ends_as_under_python(tmp_path, end):
    script = tmp_path / "train.py"
    script.write_text(
        "import os, signal, sys, time\n"
        "print(__name__, __file__, sys.argv, sys.path[0], sys.modules['__main__'].__file__)\n"
        f"{ENDS[end]}\n"
    )
    done = [
        subprocess.run(
            [sys.executable, *how, "train.py", "--log", "x"], cwd=tmp_path, timeout=TIMEOUT,
            capture_output=True, text=True,
        )
        for how in ((), ("-m", "evenstep.run", "--policy", "even"))
    ]  # fmt: skip
    stock, ours = done
    assert (ours.returncode, ours.stdout) == (stock.returncode, stock.stdout)
    lines = [line for line in ours.stderr.splitlines() if not line.startswith("evenstep: ")]
    assert lines == stock.stderr.splitlines()


def test_errors_of_a_script_look_as_usual(tmp_path):
    script = SCRIPTS / "tutorial.py"
    done = evenstep(str(script), "1", "1", "--out", "out.pt", "--fails", cwd=tmp_path)
    assert done.returncode == 1
    lines = [line for line in done.stderr.splitlines() if line.startswith("[rank1]:")]
    assert [re.sub(r"line \d+", "line N", line) for line in lines] == [
        "[rank1]: Traceback (most recent call last):",
        f'[rank1]:   File "{script}", line N, in <module>',
        "[rank1]:     main(parser.parse_args())",
        f'[rank1]:   File "{script}", line N, in main',
        '[rank1]:     raise RuntimeError("as it was asked to")',
        "[rank1]: RuntimeError: as it was asked to",
    ]


def test_arguments_are_divided_between_torchrun_the_balancer_and_the_script():
    words = "--warm-up 3 --nnodes=1 --log x --nproc-per-node 3 -m pack.train --log y --p 3"
    assert divide(words.split()) == (
        ["--nnodes=1", "--nproc-per-node", "3"],
        ["--warm-up", "3", "--log", "x"],
        ["-m", "pack.train", "--log", "y", "--p", "3"],
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--policy nonsense train.py", "policy must be one of .* got 'nonsense'"),
        ("--mode fast train.py", "--mode must be one of .* got 'fast'"),
        ("--loss median train.py", "--loss must be one of mean, sum, global, got 'median'"),
        ("--minimum few train.py", "--minimum must be a whole number >= 0, got 'few'"),
        ("--shares 1,b train.py", "--shares must be like 2,2,15, got '1,b'"),
        ("--shares 1,2 --mode balanced train.py", "--shares goes with --mode static"),
        ("--observe --mode static train.py", "--observe is mode observe"),
    ],
)
def test_mistakes_end_before_there_are_workers(words, message):
    with pytest.raises(InvalidSetting, match=message):
        divide(words.split())


def test_options_of_torchrun_are_refused_within_its_worker():
    with pytest.raises(InvalidSetting, match=r"must be left out .* got --nproc-per-node 2"):
        launch(["--nproc-per-node", "2", "train.py"], {"RANK": "0", "WORLD_SIZE": "2"})
