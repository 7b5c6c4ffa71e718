"""What `evenstep run` cannot balance, with the reason: such a script runs as it would without."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset

from evenstep.errors import InvalidSetting
from evenstep.pytorch.checks import check_model
from evenstep.pytorch.fetching import count_samples
from evenstep.pytorch.loader_options import check_loading, options_of
from evenstep.pytorch.loss_kind import Verdict
from evenstep.training.collective import Collective, compare, gather_values

TRAINERS = {
    "lightning": "evenstep.lightning",
    "pytorch_lightning": "evenstep.lightning",
    "trl": "evenstep.transformers",
    "transformers": "evenstep.transformers",
    "ray": "evenstep.ray_train",
    "deepspeed": None,
    "accelerate": "evenstep.accelerate",
}
"""Packages that run loops or make loaders of their own, and what balances them instead.

Those that run on others come before them.
"""


def check_trainer(loaders: Iterable[DataLoader[Any]]) -> None:
    """Raise InvalidSetting if a trainer runs the loop, or has made a loader."""
    parts = [part for one in loaders for part in (one, one.batch_sampler, one.sampler)]
    names = {*_running_packages(), *(type(part).__module__.partition(".")[0] for part in parts)}
    for name, instead in TRAINERS.items():
        if name in names:
            raise InvalidSetting(
                f"the loop must be the script's own, got one of {name}"
                + (f": use {instead}" if instead else ", which is not supported")
            )


def check_passes(model: DistributedDataParallel, num_models: int, num_loaders: int) -> None:
    """Raise InvalidSetting unless one model trains on one loader, and can have a balancer."""
    check_model(model)
    if dist.get_world_size(model.process_group) < 2:
        raise InvalidSetting("there must be at least 2 workers to balance, got 1")
    if num_models > 1:
        raise InvalidSetting(
            f"a loop must train one model, got {num_models}: use Balancer.include in the script"
        )
    join = getattr(model, "_join_config", None)
    if join is None or join.enable:
        raise InvalidSetting(
            "the model must be trained without join(), in which each forward pass waits for the "
            "other workers, so that no worker's own time can be measured"
        )
    if num_loaders != 1:
        raise InvalidSetting(
            "the batches of an iteration must come from one DataLoader, got "
            + ("none" if num_loaders == 0 else f"{num_loaders} that may have made them")
        )


def check_loader(loader: DataLoader[Any], num_workers: int) -> dict[str, Any]:
    """Return what all workers must have in common; raise InvalidSetting for other loaders."""
    if type(loader).__iter__ is not DataLoader.__iter__:
        raise InvalidSetting(f"the loader must be torch's DataLoader, got a {_name(loader)}")
    if isinstance(loader.dataset, IterableDataset):
        raise InvalidSetting(
            f"the data set must have an index, got a stream, {_name(loader.dataset)}: use "
            "Balancer.loader in the script"
        )
    batches = getattr(loader.batch_sampler, "sampler", loader.sampler)
    if not isinstance(batches, DistributedSampler):
        raise InvalidSetting(
            "the loader must have a DistributedSampler, so that the samples of all workers are "
            f"known, got a {_name(loader.batch_sampler or batches)} of a {_name(batches)}"
        )
    total = (getattr(loader.batch_sampler, "batch_size", None) or 0) * num_workers
    check_loading({"in_order": getattr(loader, "in_order", True)})
    # Raises for everything else: a batch sampler or an order of the user's own.
    num_samples = count_samples(loader.dataset)
    options = options_of(loader, num_samples, total, num_workers, {})
    order = {name: options[name] for name in ("shuffle", "seed", "drop_last", "pad")}
    return {"total": total, "the number of samples": num_samples, **order}


def agree(check: Callable[[], dict[str, Any]], collective: Collective) -> int:
    """Return the total if no worker's check raises and all return the same.

    Otherwise it raises InvalidSetting, on all workers; all of them must call it.
    """
    problem, common = None, {}
    try:
        common = check()
    except InvalidSetting as error:
        problem = str(error)
    except Exception as error:
        # The other workers wait for an answer.
        problem = f"the loop cannot be judged: {error!r}"
    seen = gather_values(collective, [problem, common])
    for text, _ in seen:
        if text is not None:
            raise InvalidSetting(text)
    compare([theirs for _, theirs in seen])
    return int(common["total"])


def check_verdicts(verdicts: Iterable[Verdict]) -> None:
    """Raise InvalidSetting unless all losses are means over samples for certain."""
    seen = tuple(verdicts)
    if not seen:
        raise InvalidSetting(
            "a loss must be seen by torch.autograd.backward, to know whether it is a mean over "
            "samples, got none: --loss mean or --loss sum says what it is"
        )
    for verdict in seen:
        if verdict.kind == "mean" and verdict.is_certain:
            continue
        got = {"sum": "a sum", "other": "another loss", None: "one that cannot be judged"}.get(
            verdict.kind, "what may be one by chance"
        )
        raise InvalidSetting(
            f"a loss must be a mean over the samples of this worker, got {got}, as "
            f"{verdict.reason}; --loss mean or --loss sum says what it is"
        )


def explain_nothing() -> str:
    """Return why no gradients of a DDP model were seen, as far as the loaded packages tell."""
    why = "no model in DistributedDataParallel was trained for two iterations"
    if "deepspeed" in sys.modules:
        return f"{why}; DeepSpeed is not supported"
    if "torch.distributed.fsdp" in sys.modules:
        return f"{why}; FSDP2 goes with evenstep.pytorch.ShardedBalancer"
    return why


def _running_packages() -> Iterable[str]:
    """Yield the packages of all functions that are running."""
    frame: Any = sys._getframe()
    while frame is not None:
        yield str(frame.f_globals.get("__name__")).partition(".")[0]
        frame = frame.f_back


def _name(value: Any) -> str:
    return type(value).__name__
