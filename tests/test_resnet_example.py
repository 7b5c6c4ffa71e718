"""The ResNet example: both forms of the data, a checkpoint in mid-epoch, and going on from it."""

import os
import pickle
import re
import subprocess
import sys

import numpy as np
import pytest

from evenstep.errors import DataFileError
from examples.resnet32_cifar10 import read
from tests.examples import ROOT

pytestmark = [pytest.mark.example, pytest.mark.distributed, pytest.mark.timeout(300)]

TRAINING, TEST = 50, 20


def pictures(count, seed):
    """Make pictures whose brightness tells their label, and the labels."""
    made = np.random.default_rng(seed)
    labels = made.integers(0, 10, count)
    noise = made.integers(0, 20, (count, 32, 32, 3))
    return (labels[:, None, None, None] * 23 + noise).astype(np.uint8), labels


def write_npz(folder):
    (x_train, y_train), (x_test, y_test) = pictures(TRAINING, 1), pictures(TEST, 2)
    path = folder / "pictures.npz"
    np.savez(path, x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test)
    return path


def write_batches(folder):
    """Write what `write_npz` does in the form that CIFAR-10 comes in."""
    x, y = pictures(TRAINING, 1)
    parts = {f"data_batch_{i + 1}": slice(10 * i, 10 * i + 10) for i in range(5)}
    write_batch(folder / "test_batch", *pictures(TEST, 2))
    for name, part in parts.items():
        write_batch(folder / name, x[part], y[part])
    return folder


def write_batch(path, x, y):
    flat = x.transpose(0, 3, 1, 2).reshape(len(x), -1)
    path.write_bytes(pickle.dumps({b"data": flat, b"labels": y.tolist()}))


def run(*arguments):
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    done = subprocess.run(
        [*torchrun, "--local-addr", "127.0.0.1", "--nproc-per-node", "2",
         "examples/resnet32_cifar10.py", "--total", "16", *map(str, arguments)],
        cwd=ROOT, capture_output=True, text=True, timeout=140,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_example_goes_on_in_mid_epoch_and_comes_to_the_same_end(tmp_path):
    checkpoint = tmp_path / "checkpoint.pt"
    settings = ["--epochs", 2, "--mode", "off", "--num-workers", 0]
    straight = run("--data", write_npz(tmp_path), *settings)
    assert [line.split(":")[0] for line in straight] == ["epoch 1", "epoch 2"]
    (tmp_path / "batches").mkdir()
    settings += ["--data", write_batches(tmp_path / "batches"), "--checkpoint", checkpoint]
    assert run(*settings, "--stop-after", 6) == straight[:1]
    # Four iterations an epoch: 50 samples at 16.
    assert run(*settings) == ["went on after iteration 6 in epoch 1", straight[1]]


def test_example_runs_balanced_on_a_few_pictures(tmp_path):
    log = tmp_path / "run.jsonl"
    [line] = run("--data", write_npz(tmp_path), "--limit", 40, "--epochs", 1, "--run-log", log)
    assert re.fullmatch(r"epoch 1: loss [\d.]+, accuracy [\d.]+%", line)
    assert log.read_text().count('"batch_sizes"') >= 3


class Trap:
    """Makes a folder when Python's own reader of pickles meets it."""

    def __init__(self, folder):
        self._folder = folder

    def __reduce__(self):
        return os.mkdir, (str(self._folder),)


def test_example_runs_no_code_of_a_batch(tmp_path):
    folder = write_batches(tmp_path)
    (folder / "data_batch_3").write_bytes(pickle.dumps({b"data": Trap(tmp_path / "trapped")}))
    with pytest.raises(DataFileError, match=r"data_batch_3.*mkdir"):
        read(folder, limit=None)
    assert not (tmp_path / "trapped").exists()
