"""A linear support vector machine on sparse samples, as the paper trains it on malicious URLs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from evenstep.core import Bools, Ints
from evenstep.errors import DataFileError, InvalidSetting
from evenstep.simulator.workloads.svmlight import SparseRows, read_svmlight
from evenstep.simulator.workloads.workload import Evaluation

_TEST_SHARE = 0.2
"""Share of the samples used for testing if there is no test file."""


class LinearMargin(nn.Module):
    """Computes the signed distance of samples from a plane; one row of weights per feature."""

    def __init__(self, num_features: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(num_features, 1, dtype=dtype))
        self.bias = nn.Parameter(torch.zeros(1, dtype=dtype))

    def forward(self, rows: SparseRows) -> torch.Tensor:
        scores = F.embedding_bag(
            torch.from_numpy(rows.features),
            self.weight,
            torch.from_numpy(rows.starts[:-1]),
            mode="sum",
            per_sample_weights=torch.from_numpy(rows.values).to(self.weight.dtype),
        )
        return scores.squeeze(1) + self.bias


@dataclass(frozen=True, eq=False)
class SparseSamples:
    """Rows, and whether each belongs to the second class."""

    rows: SparseRows
    is_second: Bools

    def signs(self, dtype: torch.dtype) -> torch.Tensor:
        return torch.from_numpy(np.where(self.is_second, 1.0, -1.0)).to(dtype)

    def take(self, chosen: Ints) -> SparseSamples:
        return SparseSamples(self.rows.take(chosen), self.is_second[chosen])


@dataclass(frozen=True, eq=False)
class LinearSvm:
    """Separates two classes by a plane, trained with the hinge loss.

    Features are those that occur in the training samples, regardless of the largest index. The
    model starts at zero for every seed: the problem is convex.
    """

    name: str
    train: SparseSamples
    test: SparseSamples
    num_features: int
    l2: float = 1e-4
    """Half of this times the squared weights is added to the loss."""
    dtype: torch.dtype = torch.float32

    @property
    def num_samples(self) -> int:
        return len(self.train.rows)

    @property
    def labels(self) -> Ints:
        return self.train.is_second.astype(np.int64)

    def make_model(self, seed: int) -> nn.Module:
        return LinearMargin(self.num_features, self.dtype)

    def loss(self, model: nn.Module, samples: Ints) -> torch.Tensor:
        assert isinstance(model, LinearMargin)
        batch = self.train.take(samples)
        hinge = _hinge(model(batch.rows), batch.signs(self.dtype))
        return hinge.mean() + self.l2 / 2 * model.weight.square().sum()

    @torch.no_grad()
    def evaluate(self, model: nn.Module) -> Evaluation:
        margins, signs = model(self.test.rows), self.test.signs(self.dtype)
        right = (margins > 0) == (signs > 0)
        return Evaluation(float(_hinge(margins, signs).mean()), float(right.double().mean()))


def _hinge(margins: torch.Tensor, signs: torch.Tensor) -> torch.Tensor:
    return F.relu(1 - signs * margins)


def linear_svm(
    path: str = "",
    test: str = "",
    rows: int | None = None,
    l2: float = 1e-4,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
) -> LinearSvm:
    """Return the workload on an svmlight file, or on synthetic samples without a path.

    Without a test file, a fifth of the samples, chosen by the seed, is set apart for testing.
    `rows` limits how many rows of each file are read.
    """
    if test and not path:
        raise InvalidSetting(f"test must come with a path to train on, got {test!r} alone")
    name = f"svm-{Path(path).name}" if path else "svm-synthetic"
    samples = _read(path, rows) if path else synthetic(seed)
    parts = (samples, _read(test, rows)) if test else _set_apart(samples, seed, name)
    return _assemble(name, *parts, l2, dtype)


def _set_apart(samples: SparseSamples, seed: int, name: str) -> tuple[SparseSamples, SparseSamples]:
    """Return the training and the test samples."""
    order = np.random.default_rng(seed).permutation(len(samples.rows))
    cut = max(1, round(_TEST_SHARE * len(order)))
    if cut == len(order):
        raise DataFileError(f"{name}: samples must suffice to set some apart, got {len(order)}")
    return samples.take(np.sort(order[cut:])), samples.take(np.sort(order[:cut]))


def _assemble(
    name: str, train: SparseSamples, test: SparseSamples, l2: float, dtype: torch.dtype
) -> LinearSvm:
    if not 0 <= l2 < np.inf:
        raise InvalidSetting(f"l2 must be finite and >= 0, got {l2}")
    known = np.unique(train.rows.features)
    if known.size == 0:
        raise InvalidSetting(f"training samples of {name} must have a value that is not zero")
    return LinearSvm(
        name,
        SparseSamples(train.rows.renumber(known), train.is_second),
        SparseSamples(test.rows.renumber(known), test.is_second),
        len(known),
        l2,
        dtype,
    )


def _read(path: str, most_rows: int | None) -> SparseSamples:
    rows, labels = read_svmlight(Path(path), most_rows)
    classes = np.unique(labels)
    if len(classes) != 2:
        shown = ", ".join(f"{label:g}" for label in classes[:5])
        raise DataFileError(f"{path}: there must be two classes, got {len(classes)}: {shown}")
    return SparseSamples(rows, labels == classes[1])


def synthetic(seed: int, num_samples: int = 5000, num_features: int = 500) -> SparseSamples:
    """Draw sparse samples with common and rare features, 5 % of them mislabelled.

    >>> len(synthetic(seed=0).rows)
    5000
    """
    rng = np.random.default_rng(seed)
    chances = np.minimum(1.0, 10 / (1 + np.arange(num_features)))
    has = rng.random((num_samples, num_features)) < chances
    values = np.where(has, rng.uniform(0.5, 1.5, has.shape), 0.0)
    margins = values @ rng.standard_normal(num_features)
    is_second = (margins > np.median(margins)) ^ (rng.random(num_samples) < 0.05)
    starts = np.concatenate([[0], np.cumsum(has.sum(axis=1))])
    return SparseSamples(SparseRows(starts, np.nonzero(has)[1], values[has]), is_second)
