"""Compiled models: a batch size that changes must not compile a model anew.

`torch.compile` takes every size that it meets for the only one. Before each forward pass we say of
those inputs that have an entry for each sample that this number changes. A single sample remains a
case of its own, which is compiled once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_leaves


def without_compiler(model: Any) -> Any:
    """Return the model inside what `torch.compile` returned, or the model itself."""
    return getattr(model, "_orig_mod", model)


def mark_batches(model: DistributedDataParallel, batch_size: Callable[[], int]) -> None:
    """Say of the inputs of every forward pass that the number of their samples changes."""
    mark = torch._dynamo.maybe_mark_dynamic

    def on_forward(module: torch.nn.Module, inputs: Any, named: Any) -> None:
        size = batch_size()
        for value in tree_leaves((inputs, named)):
            if isinstance(value, torch.Tensor) and value.dim() and len(value) == size:
                mark(value, 0)

    model.register_forward_pre_hook(torch.compiler.disable(on_forward), with_kwargs=True)
