"""Gathering: what `accelerator.gather` returns for batches of unequal sizes.

Accelerate gathers tensors of the same size on all workers. For the batches of a balanced loader,
tensors with one entry per sample are padded for the transfer, and the entries are returned in the
order of the stock script, each once. So `gather_for_metrics` cuts off the samples that are repeated
at the end of an epoch as it always does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import gather_object, recursively_apply

from evenstep.accelerate.loader import AcceleratedLoader, SkippingLoader
from evenstep.core import Ints
from evenstep.core.dealing import deal
from evenstep.errors import InvalidSetting
from evenstep.training.epochs import Dealt


def follow_loader(accelerator: Accelerator, loader: AcceleratedLoader) -> None:
    """Have the methods of an accelerator know a balanced loader."""
    gathering = getattr(accelerator.gather, "__self__", None)
    if isinstance(gathering, Gathering):
        gathering.loader = loader
        return
    gathering = Gathering(accelerator, loader)
    accelerator.gather = gathering.gather
    accelerator.gather_for_metrics = gathering.gather_for_metrics
    accelerator.skip_first_batches = gathering.skip_first_batches


class Gathering:
    """The methods of an accelerator that depend on the loader, for its own and balanced ones."""

    def __init__(self, accelerator: Accelerator, loader: AcceleratedLoader) -> None:
        self.loader = loader
        """The loader that was prepared last."""
        self._accelerator = accelerator
        self._gather: Callable[[Any], Any] = accelerator.gather
        self._gather_for_metrics: Callable[..., Any] = accelerator.gather_for_metrics
        self._skip_first_batches: Callable[..., Any] = accelerator.skip_first_batches

    def gather(self, tensor: Any) -> Any:
        """Gather tensors of all workers, which may have one entry per sample of a batch."""
        loader = self._source
        if loader.dealt is None:
            return self._gather(tensor)
        with loader.balancer.away():
            return self._gather_dealt(tensor, loader.dealt)

    def gather_for_metrics(self, input_data: Any, use_gather_object: bool = False) -> Any:
        """Gather tensors or objects of all workers, without samples that are repeated."""
        loader = self._source
        if not use_gather_object and _has_only_tensors(input_data):
            return self._gather_for_metrics(input_data)
        if loader.dealt is None:
            return self._gather_for_metrics(input_data, use_gather_object=use_gather_object)
        with loader.balancer.away():
            samples, sizes = self._rows([len(input_data)], loader.dealt).T
            gathered = gather_object(input_data)
        if self._are_of_a_batch(sizes, samples):
            found = places(loader.dealt.sizes, np.cumsum(sizes) - sizes)
            gathered = [gathered[i] for i in found]
        state = self._accelerator.gradient_state
        ends = state.end_of_dataloader and state.remainder > 0
        return gathered[: state.remainder] if ends else gathered

    def skip_first_batches(self, dataloader: Any, num_batches: int = 0) -> Any:
        """Return a loader of the same epoch that begins with this batch."""
        if isinstance(dataloader, AcceleratedLoader):
            return SkippingLoader(dataloader, num_batches)
        return self._skip_first_batches(dataloader, num_batches=num_batches)

    @property
    def _source(self) -> AcceleratedLoader:
        """The balanced loader that tensors may come from, also after its loop has ended."""
        active = self._accelerator.gradient_state.active_dataloader
        return active if isinstance(active, AcceleratedLoader) else self.loader

    def _are_of_a_batch(self, rows: Ints, samples: Ints) -> bool:
        """Whether tensors with these rows have one for each sample of a balanced batch."""
        active = self._accelerator.gradient_state.active_dataloader
        is_evaluation = active is not None and not isinstance(active, AcceleratedLoader)
        return np.array_equal(rows, samples) and not (is_evaluation and (rows == rows[0]).all())

    def _gather_dealt(self, tensor: Any, dealt: Dealt) -> Any:
        tensors: list[torch.Tensor] = []
        recursively_apply(tensors.append, tensor, error_on_other_type=True)
        rows = self._rows([len(one) if one.ndim else 1 for one in tensors], dealt)
        columns = iter(rows[:, 1:].T)
        return recursively_apply(
            lambda one: self._gather_one(one, next(columns), rows[:, 0], dealt.sizes), tensor
        )

    def _gather_one(self, tensor: torch.Tensor, rows: Ints, samples: Ints, sizes: Ints) -> Any:
        """Gather a tensor that has this many rows on each worker."""
        if self._are_of_a_batch(rows, samples) and tensor.ndim:
            most = int(rows.max())
            padding = tensor.new_zeros((most - len(tensor), *tensor.shape[1:]))
            gathered = self._gather(torch.cat([tensor, padding]))
            return gathered[torch.from_numpy(places(sizes, np.arange(len(rows)) * most))]
        if (rows == rows[0]).all():
            return self._gather(tensor)
        raise InvalidSetting(
            "tensors to gather must have one entry per sample of the batch, or as many entries on "
            f"each worker, got {rows.tolist()} entries for batches of {samples.tolist()} samples"
        )

    def _rows(self, rows: list[int], dealt: Dealt) -> Ints:
        """Return the samples of each worker's batch, also borrowed ones, and their rows."""
        mine = torch.tensor([[len(dealt.samples), *rows]], device=self._accelerator.device)
        gathered: Ints = self._gather(mine).cpu().numpy()
        return gathered


def places(sizes: Ints, starts: Ints) -> Ints:
    """Return where each sample of an iteration is, in its order, in what was gathered.

    The entries of each worker begin at `starts`.

    >>> places(np.array([1, 3]), np.array([0, 3]))
    array([0, 5, 3, 4])
    """
    found = np.empty(int(sizes.sum()), dtype=np.int64)
    for worker, start in enumerate(starts.tolist()):
        dealt = deal(np.arange(len(found)), sizes, worker)
        found[dealt] = start + np.arange(len(dealt))
    return found


def _has_only_tensors(value: Any) -> bool:
    try:
        recursively_apply(lambda tensor: tensor, value, error_on_other_type=True)
    except TypeError:
        return False
    return True
