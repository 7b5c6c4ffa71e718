"""The examples run, and the README shows what they are."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.examples import ROOT, run_on_two_workers, unified_diff
from tests.manager.managers import running

STOCK, BALANCED = "examples/ddp_digits_stock.py", "examples/ddp_digits.py"
OWN_BATCHES_STOCK, OWN_BATCHES = "examples/nanogpt_style_stock.py", "examples/nanogpt_style.py"
TRANSFORMER = "examples/char_transformer.py"
PLAIN_NUMPY = ROOT / "examples/plain_numpy.py"


def test_readme_shows_the_difference_between_the_examples():
    [shown] = re.findall(r"```diff\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert shown == "".join(unified_diff((STOCK, BALANCED)))


@pytest.mark.parametrize("names", [(STOCK, BALANCED), (OWN_BATCHES_STOCK, OWN_BATCHES)])
def test_three_lines_make_the_difference(names):
    _, _, *changes = unified_diff(names)
    assert sum(line.startswith("+") for line in changes) == 3
    assert sum(line.startswith("-") for line in changes) <= 3


def test_ten_lines_of_any_loop_are_those_of_the_example():
    [shown] = re.findall(r"```python\n(.*?)```", (ROOT / "docs/any_loop.md").read_text(), re.DOTALL)
    connecting, *lines = [line.strip() for line in shown.splitlines()]
    assert len(lines) < 10 and connecting.startswith("client = evenstep.connect(address, ")
    work = PLAIN_NUMPY.read_text().partition("def work")[2].partition("def train_alone")[0]
    used = [line.strip() for line in work.splitlines()]
    assert [line for line in used if line in lines] == lines


@pytest.mark.example
@pytest.mark.distributed
@pytest.mark.timeout(180)
@pytest.mark.parametrize("example", [STOCK, BALANCED])
def test_example_learns_to_read_digits(example):
    # A stock script may abort at exit when gloo's threads are late, a known trap of PyTorch. A
    # balanced one must not: Evenstep waits for them.
    done = run_on_two_workers(example, tries=3 if example == STOCK else 1)
    [accuracy] = re.findall(r"^accuracy ([\d.]+)% after 5 epochs$", done.stdout, re.MULTILINE)
    assert float(accuracy) > 90


@pytest.mark.example
@pytest.mark.distributed
@pytest.mark.timeout(360)
def test_example_with_batches_of_its_own_trains_as_its_stock_form_does(tmp_path):
    checkpoints = []
    for example in (OWN_BATCHES_STOCK, OWN_BATCHES):
        checkpoint = tmp_path / f"{Path(example).stem}.pt"
        settings = ["--dtype", "float64", "--checkpoint", str(checkpoint)]
        # A stock script may abort at exit, as above.
        done = run_on_two_workers(
            example, *settings, tries=3 if example == OWN_BATCHES_STOCK else 1
        )
        printed = re.findall(r"^iteration (\d+): loss ([\d.]+)$", done.stdout, re.MULTILINE)
        assert [int(iteration) for iteration, _ in printed] == [0, 20, 40, 60]
        # The natural logarithm of 128 is 4.85.
        assert float(printed[-1][1]) < 3.3 < 4.5 < float(printed[0][1])
        checkpoints.append((torch.load(checkpoint), printed))
    (stock, stock_losses), (balanced, losses) = checkpoints
    assert losses == stock_losses
    assert balanced["iteration"] == stock["iteration"] == 60
    for name, expected in stock["model"].items():
        torch.testing.assert_close(balanced["model"][name], expected, rtol=1e-10, atol=1e-12)


@pytest.mark.example
@pytest.mark.distributed
@pytest.mark.timeout(180)
def test_sharded_example_is_calibrated_and_learns():
    printed = run_on_two_workers("examples/fsdp2_mlp.py").stdout
    line = r"^epoch (\d): batch sizes (\d+)/(\d+), loss ([\d.]+)$"
    epochs = re.findall(line, printed, re.MULTILINE)
    assert [int(epoch) for epoch, *_ in epochs] == list(range(5))
    assert {int(first) + int(second) for _, first, second, _ in epochs} == {64}
    assert float(epochs[-1][-1]) < 0.2 < float(epochs[0][-1])


@pytest.mark.example
@pytest.mark.distributed
@pytest.mark.timeout(180)
def test_example_learns_with_plans_of_a_manager(tmp_path):
    with running(log=tmp_path / "log") as manager:
        printed = run_on_two_workers("examples/ddp_manager.py", manager.address).stdout
        (job,) = manager.status().values()
    line = r"^epoch (\d): plan (\d+), sizes \[ *(\d+) +(\d+)\]$"
    epochs = re.findall(line, printed, re.MULTILINE)
    assert [int(epoch) for epoch, *_ in epochs] == list(range(5))
    assert {int(first) + int(second) for _, _, first, second in epochs} == {64}
    [accuracy] = re.findall(r"^accuracy ([\d.]+)% on the samples", printed, re.MULTILINE)
    assert float(accuracy) > 90
    # Both have left, and the manager has what it learned.
    assert (job["job"], job["running"]) == ("digits", False)


@pytest.mark.example
@pytest.mark.distributed
@pytest.mark.timeout(180)
def test_samples_move_to_the_worker_with_the_larger_batches():
    printed = run_on_two_workers("examples/ddp_partitions.py").stdout
    line = r"^(at first|at last): partitions \[(\d+), (\d+)\], classes (.*), traversals (.*)$"
    [first, last] = re.findall(line, printed, re.MULTILINE)
    assert first == ("at first", "360", "360", "[[0, 1], [2, 3]]", "0.0 0.0")
    assert last[:4] == ("at last", "540", "180", "[[0, 1, 2, 3], [2, 3]]")
    # Both go through their samples equally often now.
    counts = [float(count) for count in last[4].split()]
    assert abs(counts[0] - counts[1]) < 0.2
    [accuracy] = re.findall(r"^accuracy ([\d.]+)% on the samples", printed, re.MULTILINE)
    assert float(accuracy) > 90


@pytest.mark.example
@pytest.mark.distributed
@pytest.mark.timeout(180)
def test_streams_continue_from_the_checkpoints_of_all_workers(tmp_path):
    where = ["examples/streaming.py", "--checkpoints", str(tmp_path)]
    line = r"^accuracy ([\d.]+)% after (\d+) iterations$"
    printed = run_on_two_workers(*where, "--iterations", "50", "--loaders", "1").stdout
    [(_, iterations)] = re.findall(line, printed, re.MULTILINE)
    assert iterations == "50"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["worker-0.pt", "worker-1.pt"]
    printed = run_on_two_workers(*where, "--loaders", "1").stdout
    [(accuracy, iterations)] = re.findall(line, printed, re.MULTILINE)
    # Five epochs of 1500 records, 64 at a time, of which the first two were not read again.
    assert iterations == str(5 * 24)
    assert float(accuracy) > 80


@pytest.mark.example
@pytest.mark.distributed
@pytest.mark.timeout(180)
def test_transformer_learns_to_write():
    done = run_on_two_workers(TRANSFORMER, "--small", "--epochs", "2", "--total", "16")
    losses = re.findall(r"^epoch \d: loss ([\d.]+) per character$", done.stdout, re.MULTILINE)
    assert len(losses) == 2
    assert float(losses[1]) < float(losses[0]) < 5.6  # The natural logarithm of 256 is 5.5.
    # On equal cores the policy may well keep the sizes of plain BSP.
    line = r"^evenstep: batch sizes (\d+)/(\d+)(, as in plain BSP)?; "
    [(first, second, as_in_bsp)] = re.findall(line, done.stderr, re.MULTILINE)
    assert int(first) + int(second) == 16
    assert not as_in_bsp or first == second


@pytest.mark.example
@pytest.mark.distributed
@pytest.mark.parametrize("num_workers", [2, 3])
def test_plain_numpy_trains_as_a_single_process_would(tmp_path, num_workers):
    with running(log=tmp_path / "log") as manager:
        where = ["--manager", manager.address, "--workers", str(num_workers)]
        done = subprocess.run(
            [sys.executable, PLAIN_NUMPY, *where],
            cwd=ROOT, capture_output=True, text=True, timeout=100,
        )  # fmt: skip
        (job,) = manager.status().values()
    assert done.returncode == 0, done.stderr
    found = sorted(re.findall(r"'(worker-\d)': (\d+)", done.stdout))
    sizes = [int(size) for _, size in found]
    assert len(sizes) == num_workers and sum(sizes) == 96
    # Emulated: the first worker is the fastest, the last the slowest.
    assert max(sizes) == sizes[0] > 1.5 * sizes[-1]
    assert re.search(r"parameters equal\b.*single process", done.stdout)
    assert (job["job"], job["running"]) == ("numpy", False)


@pytest.mark.example
@pytest.mark.timeout(300)
def test_notebook_runs_and_shows_its_run_logs(tmp_path):
    import nbclient
    import nbformat

    path = ROOT / "examples/quickstart.ipynb"
    notebook = nbformat.read(path, as_version=4)
    # It is kept without results: those would be of another version, with paths of a machine.
    assert [
        cell.outputs for cell in notebook.cells if cell.cell_type == "code" and cell.outputs
    ] == []
    resources = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, timeout=200, resources=resources).execute()
    outputs = [out for cell in notebook.cells for out in cell.get("outputs", ())]
    pages = [out["data"]["text/html"] for out in outputs if "text/html" in out.get("data", {})]
    assert len(pages) == 2
    for page in pages:
        assert "<table>" in page and "<svg" in page
        assert "simulated" in page
    text = "".join(out.get("text", "") for out in outputs)
    [gain] = re.findall(r"^simulated: ([\d.]+) times faster", text, re.MULTILINE)
    assert float(gain) > 2
    assert "Straggler: K520, " in text
