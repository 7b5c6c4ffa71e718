"""What the loss of a Trainer is, so that gradients are those of the stock Trainer.

Stock workers have batches of the same size and average their gradients. A loss that the Trainer
has divided by the tokens of all workers (`num_items_in_batch`) stays right with other sizes. A mean
over the samples of a worker is multiplied by n x_i / X. Where it is neither, the result of the
stock Trainer depends on which worker has which samples, and training stops with an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

import torch

from evenstep.errors import InvalidSetting
from evenstep.pytorch.loss_kind import verdict_of

Kind = Literal["mean", "sum", "global"]

LossAt = Callable[[Any], torch.Tensor]
"""From a number of items to the loss of the running batch with it."""

_TOLERANCE = 32
"""The relative error of a derivative, in units of the least exact type that it comes from."""
_MOST_ASKED = 8
"""Passes in which the graph of a loss is asked whether it is no mean over samples."""


def differentiable(num_items: Any) -> Any:
    """Return the number of items as a tensor that derivatives can be taken with respect to."""
    if num_items is None:
        return None
    number = torch.as_tensor(num_items).detach()
    return (number if number.is_floating_point() else number.float()).clone().requires_grad_()


def kind_of(loss: torch.Tensor, num_items: Any, again: LossAt) -> Kind | None:
    """Return whether a loss is divided by the number of items, or does not depend on it.

    `again` computes the loss for another number, where that is hidden from derivatives. Returns
    None if a loss of 0 does not tell.
    """
    if num_items is None:
        return "mean"
    if not float(loss.detach()):
        return None
    slope = None
    if loss.requires_grad:
        (slope,) = torch.autograd.grad(loss, num_items, retain_graph=True, allow_unused=True)
    if slope is not None and float(slope):
        falls = -float(slope * num_items.detach()) / float(loss.detach())
    else:
        twice = float(again(2 * num_items.detach())) / float(again(num_items.detach()))
        falls = 2 * (1 - twice)
    tolerance = _TOLERANCE * max(torch.finfo(one.dtype).eps for one in (loss, num_items))
    if abs(falls - 1) <= tolerance:
        return "global"
    if abs(falls) <= tolerance:
        return "mean"
    raise InvalidSetting(
        "the loss of a Trainer must be divided by num_items_in_batch as a whole, or not at all, as "
        "other parts (the auxiliary loss of a mixture of experts, say) depend on which worker has "
        f"which samples, got one of which {falls:.4g} is: see loss= in docs/transformers.md"
    )


class MeanCheck:
    """Checks that losses taken for means over the samples of a worker are such means.

    A mean over tokens is one if all samples have the same number of labels, in the tensors of a
    batch with these names.
    """

    def __init__(self, names: Iterable[str], model: Any) -> None:
        self._names = list(names)
        config = getattr(model, "config", None)
        self._ignored = {-100, getattr(config, "semantic_loss_ignore_index", -100)}
        """Labels that losses leave out."""
        self._known: dict[str, int] | None = None
        """The labels of each sample, by the names of their tensors."""
        self._num_asked = 0

    def see_loss(self, loss: torch.Tensor, samples: int) -> None:
        """Raise InvalidSetting for what is certainly no mean over samples, in the first passes."""
        if self._num_asked >= _MOST_ASKED:
            return
        self._num_asked += 1
        verdict = verdict_of(loss, samples)
        if not verdict.is_certain:
            return
        self._num_asked = _MOST_ASKED
        if verdict.kind == "sum":
            raise InvalidSetting(
                "the loss of a Trainer must be a mean over the samples of this worker unless "
                f'balance(trainer, loss="sum") says otherwise, got a sum, as {verdict.reason}'
            )
        if verdict.kind == "other":
            raise InvalidSetting(
                "the loss of a Trainer must be a mean over the samples of this worker, as the "
                "stock result depends on which samples those are otherwise, got another loss, as "
                f"{verdict.reason}"
            )

    def see_labels(self, inputs: Mapping[str, Any], shared: Callable[[Any], list[Any]]) -> None:
        """Raise InvalidSetting unless all samples have the same number of labels.

        `shared` returns the values of all workers, which are compared in the first pass.
        """
        if self._known is None:
            self._known = _agreed(shared(self._counts_or_error(inputs)))
        counts = self._counts_or_error(inputs)
        if isinstance(counts, str):
            raise InvalidSetting(counts)
        for name, count in counts.items():
            if count != self._known.get(name, count):
                raise InvalidSetting(_unequal(name, f"{self._known[name]} and {count}"))

    def _counts_or_error(self, inputs: Mapping[str, Any]) -> dict[str, int] | str:
        try:
            return {name: self._count(name, inputs[name]) for name in self._names if name in inputs}
        except InvalidSetting as error:
            return str(error)

    def _count(self, name: str, labels: Any) -> int:
        if not isinstance(labels, torch.Tensor) or labels.dim() == 0:
            raise InvalidSetting(
                f"{name} must be a tensor with an entry per sample if the loss of a Trainer is a "
                f'mean, got {type(labels).__name__}: balance(trainer, loss="mean") says that it '
                "is a mean over samples"
            )
        counted = torch.ones_like(labels, dtype=torch.bool)
        for value in self._ignored:
            counted &= labels.ne(value)
        rows = counted.reshape(len(labels), -1)
        # The loss of a causal language model does not use the first label of a sample.
        for used in (rows, rows[:, 1:]):
            each = used.sum(1)
            if each.min() != each.max():
                raise InvalidSetting(_unequal(name, f"from {int(each.min())} to {int(each.max())}"))
        return int(rows[0].sum())


def _agreed(answers: list[Any]) -> dict[str, int]:
    """Return the counts of all workers; raise InvalidSetting if one has an error, or others."""
    for answer in answers:
        if isinstance(answer, str):
            raise InvalidSetting(answer)
    first: dict[str, int] = answers[0]
    for other in answers:
        for name, count in other.items():
            if count != first.get(name, count):
                raise InvalidSetting(_unequal(name, f"{first[name]} and {count}"))
    return first


def _unequal(name: str, got: str) -> str:
    return (
        f"all samples must have the same number of {name} where the loss of a Trainer is not "
        "divided by the tokens of all workers, as it may be a mean over the tokens of one worker, "
        f"and the stock result depends on which samples those are, got {got}: use "
        "average_tokens_across_devices=True and a model that takes num_items_in_batch, or "
        'balance(trainer, loss="mean") if the loss is a mean over samples'
    )
