"""Batches whose tensors do not have one row per sample in their first dimension, or are no tensors.

What a sample does to the gradient does not depend on the rest of its batch, nor on padding.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import PackedSequence, pack_sequence, pad_sequence
from torch.utils.data import Dataset

from tests.pytorch.setup import FEATURES
from tests.real_loops.harness import (
    SAMPLES,
    Half,
    epochs,
    optimizer_of,
    same_as_stock,
    same_as_stock_or_refused,
    step,
    without_exchange,
)

pytestmark = [pytest.mark.distributed]

VOCABULARY, WIDTH, CLASSES = 11, 8, 3
LENGTH = 8
"""Of sequences that are equally long: also a batch size of both halves, to be mistaken for one."""


class Sequences(Dataset[Any]):
    """Sequences of features and of tokens, of different lengths, and their labels."""

    def __init__(self) -> None:
        made = torch.Generator().manual_seed(17)
        self._lengths = torch.randint(2, 10, (SAMPLES,), generator=made).tolist()
        self._features = torch.randn(SAMPLES, 9, FEATURES, generator=made, dtype=torch.float64)
        self._tokens = torch.randint(1, VOCABULARY, (SAMPLES, 9), generator=made)
        self._labels = torch.randint(0, CLASSES, (SAMPLES,), generator=made)

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        length = self._lengths[index]
        return self._features[index, :length], self._tokens[index, :length], self._labels[index]


class Words(nn.Module):
    """A net on the mean of the words of a sentence, which are padded with 0."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(19)
            self.words = nn.Embedding(VOCABULARY, WIDTH, dtype=torch.float64)
            self.out = nn.Linear(WIDTH, CLASSES, dtype=torch.float64)

    def forward(
        self, tokens: torch.Tensor, lengths: torch.Tensor, labels: torch.Tensor | None = None
    ) -> dict[str, torch.Tensor]:
        words = self.words(tokens) * (tokens > 0).unsqueeze(2)
        logits = self.out(torch.tanh(words.sum(1) / lengths.unsqueeze(1)))
        return {"logits": logits} if labels is None else {"loss": cross_entropy(logits, labels)}


class Flattened(Words):
    """The same on the words of all sentences in one row, with the number of each one's sentence."""

    def forward(self, tokens: torch.Tensor, sentences: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        words, of = self.words(tokens[0]), sentences[0]
        num_sentences = int(of[-1]) + 1
        sums = words.new_zeros(num_sentences, WIDTH).index_add(0, of, words)
        counts = torch.bincount(of, minlength=num_sentences).unsqueeze(1)
        logits: torch.Tensor = self.out(torch.tanh(sums / counts))
        return logits


class Recurrent(nn.Module):
    """A recurrent net on a packed sequence, or on tensors with time first."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(23)
            self.cells = nn.GRU(FEATURES, WIDTH, dtype=torch.float64)
            self.out = nn.Linear(WIDTH, CLASSES, dtype=torch.float64)

    def forward(self, x: torch.Tensor | PackedSequence) -> torch.Tensor:
        _, last = self.cells(x)
        logits: torch.Tensor = self.out(last[0])
        return logits


def as_dict(samples: list[Any]) -> dict[str, torch.Tensor]:
    _, tokens, labels = zip(*samples, strict=True)
    lengths = torch.tensor([len(sentence) for sentence in tokens])
    padded = pad_sequence(list(tokens), batch_first=True)
    return {"tokens": padded, "lengths": lengths, "labels": torch.stack(labels)}


def as_packed(samples: list[Any]) -> tuple[PackedSequence, torch.Tensor]:
    features, _, labels = zip(*samples, strict=True)
    return pack_sequence(list(features), enforce_sorted=False), torch.stack(labels)


def as_lists(samples: list[Any]) -> tuple[list[torch.Tensor], torch.Tensor]:
    features, _, labels = zip(*samples, strict=True)
    return list(features), torch.stack(labels)


def time_first(samples: list[Any]) -> tuple[torch.Tensor, torch.Tensor]:
    features, _, labels = zip(*samples, strict=True)
    equally_long = [torch.cat([x] * 4)[:LENGTH] for x in features]
    return torch.stack(equally_long, dim=1), torch.stack(labels)


def in_one_row(samples: list[Any]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    _, tokens, labels = zip(*samples, strict=True)
    sentences = torch.cat([torch.full((len(words),), i) for i, words in enumerate(tokens)])
    return torch.cat(tokens).unsqueeze(0), sentences.unsqueeze(0), torch.stack(labels)


def loss_of_dict(model: Any, batch: dict[str, torch.Tensor]) -> tuple[torch.Tensor, int]:
    loss: torch.Tensor = model(**batch)["loss"]
    return loss, len(batch["labels"])


def loss_of_last(model: Any, batch: Any) -> tuple[torch.Tensor, int]:
    """Return the loss of a batch whose last part are the labels."""
    *inputs, labels = batch
    return cross_entropy(model(*inputs), labels), len(labels)


def loss_packed_here(model: Any, batch: Any) -> tuple[torch.Tensor, int]:
    """Pack in the body of the loop, so that the model gets no tensor of the loader."""
    features, labels = batch
    packed = pack_sequence(features, enforce_sorted=False)
    return cross_entropy(model(packed), labels), len(labels)


def loss_turned_here(model: Any, batch: Any) -> tuple[torch.Tensor, int]:
    """Put time first in the body of the loop: in a copy, of another shape."""
    x, labels = batch
    return cross_entropy(model(x.transpose(0, 1).contiguous()), labels), len(labels)


def batch_first(samples: list[Any]) -> tuple[torch.Tensor, torch.Tensor]:
    x, labels = time_first(samples)
    return x.transpose(0, 1).contiguous(), labels


class Kind(NamedTuple):
    """A kind of input: its net, how samples become a batch, and the loss with its samples."""

    net: Callable[[], nn.Module]
    collate: Callable[[list[Any]], Any]
    loss_of: Callable[[Any, Any], tuple[torch.Tensor, int]]


KINDS = {
    "dict": Kind(Words, as_dict, loss_of_dict),
    "packed": Kind(Recurrent, as_packed, loss_of_last),
    "packed in the loop": Kind(Recurrent, as_lists, loss_packed_here),
    "time first": Kind(Recurrent, time_first, loss_of_last),
    "time first in the loop": Kind(Recurrent, batch_first, loss_turned_here),
    "in one row": Kind(Flattened, in_one_row, loss_of_last),
}
OWN = ("dict", "packed", "time first", "in one row")
"""Kinds whose model gets tensors of the loader."""


def training(half: Half, kind: str, feed: str, accumulate: int = 1) -> nn.Module:
    make_net, collate, loss_of = KINDS[kind]
    model = half.wrap(make_net())
    optimizer = optimizer_of(model)
    loader = half.loader(Sequences(), collate_fn=collate)
    for i, batch in enumerate(epochs(loader, feed), 1):
        with without_exchange(model, "no_sync", keeps=i % accumulate > 0):
            loss, num_samples = loss_of(model, batch)
            (loss / accumulate).backward()
        half.log(loss, num_samples)
        if i % accumulate == 0:
            step(optimizer)
    return model


@pytest.mark.parametrize("kind", KINDS)
def test_inputs_train_as_in_the_stock_script(workers, kind):
    same_as_stock(workers, training, kind=kind, feed="in_turn")


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("feed", ["one_ahead", "two_ahead"])
@pytest.mark.parametrize("kind", OWN)
def test_inputs_fetched_ahead_train_as_in_the_stock_script(workers, kind, feed, accumulate):
    same_as_stock(workers, training, kind=kind, feed=feed, accumulate=accumulate)


@pytest.mark.parametrize("feed", ["one_ahead_copied", "two_ahead_copied"])
def test_copied_dicts_train_as_in_the_stock_script(workers, feed):
    same_as_stock(workers, training, kind="dict", feed=feed)


@pytest.mark.parametrize("feed", ["one_ahead_copied", "two_ahead_copied"])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "dict"])
def test_copies_are_attributed_or_refused(workers, kind, feed):
    same_as_stock_or_refused(workers, training, kind=kind, feed=feed)


@pytest.mark.parametrize("feed", ["one_ahead", "two_ahead"])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in OWN])
def test_tensors_made_in_the_loop_are_attributed_or_refused(workers, kind, feed):
    same_as_stock_or_refused(workers, training, kind=kind, feed=feed)
