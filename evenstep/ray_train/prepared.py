"""The model and the loader of a worker of Ray Train, prepared by Ray and balanced by Evenstep."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from evenstep.core import SavedState, sealed
from evenstep.errors import EvenstepError, InvalidSetting
from evenstep.pytorch import Balancer
from evenstep.pytorch.checks import can_be_wrapped
from evenstep.pytorch.compatibility import without_compiler
from evenstep.pytorch.loader_options import LoaderOptions
from evenstep.runlog.loggers import Means


def prepare(
    model: torch.nn.Module,
    loader: Any,
    *,
    total: int | None = None,
    move_to_device: bool = True,
    **options: Any,
) -> tuple[DistributedDataParallel, PreparedLoader]:
    """Return the model and the loader as Ray Train prepares them, with planned batch sizes.

    In place of `ray.train.torch.prepare_model` and `prepare_data_loader`; what Ray has prepared
    already is taken as it is. Iteration k processes the samples that it would with Ray's loader.
    `loader` is a DataLoader, whose batch size times the number of workers is the total; a data set,
    a stream, or what `ray.train.get_dataset_shard` returns takes `total`. The other options are
    those of `Balancer` and of `Balancer.loader`.
    All workers must call it, inside of `train_loop_per_worker`.
    """
    of_ray = _ray_train_torch()
    _check_worker()
    _check_straggler(options.get("straggler", "advise"))
    source, total = _source_of(loader, of_ray), _total(loader, total)
    of_loader = {name: options.pop(name) for name in sorted(_OF_LOADER & set(options))}
    figures = Means()
    options["log"] = [*_outputs(options.get("log")), figures]
    wrapped = _prepared_model(model, of_ray)
    balancer = Balancer(wrapped, total, **options)
    device = of_ray.get_device() if move_to_device else None
    made = balancer.loader(source, **of_loader)
    return wrapped, PreparedLoader(
        balancer, made, getattr(source, "sampler", None), device, figures
    )


class PreparedLoader:
    """Iterates over the batches of one worker, on its device; made by `prepare`."""

    def __init__(
        self,
        balancer: Balancer,
        loader: Any,
        sampler: Any,
        device: torch.device | None,
        figures: Means,
    ) -> None:
        self.balancer = balancer
        self.dataset = loader.dataset
        self.sampler = sampler if isinstance(sampler, DistributedSampler) else loader
        """Has `set_epoch`: the sampler that Ray's loader has, if there is one."""
        self._loader = loader
        self._device = device
        self._figures = figures
        # Ray ends its workers without atexit; the end of the training function releases this.
        self._closed = weakref.finalize(self, balancer.close)

    def __len__(self) -> int:
        """The number of iterations of an epoch."""
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        if isinstance(self.sampler, DistributedSampler):
            # As with Ray's loader, epochs have the same order unless the script sets the epoch.
            self._loader.set_epoch(self.sampler.epoch)
        for batch in self._loader:
            yield batch if self._device is None else moved(batch, self._device)

    @property
    def batch_size(self) -> int:
        """This worker's current batch size."""
        return self.balancer.batch_size

    def figures(self) -> dict[str, float]:
        """Return figures for `ray.train.report`: means over the iterations since the last call.

        Iteration time, share of waiting, and each worker's batch size, time, waiting and speed. On
        worker 0, whose metrics Ray keeps; nothing on the others.
        """
        return self._figures.take()

    def state_dict(self) -> dict[str, Any]:
        """Return what was learned, and the position in the data, for a checkpoint.

        That of worker 0 fits all workers; a stream has one on each worker.
        """
        return sealed(
            {
                "balancer": self.balancer.state_dict(),
                "loader": self._loader.state_dict(),
                "epoch": getattr(self.sampler, "epoch", None),
            }
        )

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a checkpoint, also with another number of workers.

        The total must be the same, and so a DataLoader's batch size times the number of workers.
        A state that is refused changes nothing.
        """
        saved = SavedState("a loader of Ray Train", state, "balancer", "loader", "epoch")
        epoch = None if saved["epoch"] is None else saved.whole("epoch")
        self._loader.check_state(saved["loader"])
        self.balancer.load_state_dict(saved["balancer"])
        self._loader.load_state_dict(saved["loader"])
        if isinstance(self.sampler, DistributedSampler) and epoch is not None:
            self.sampler.set_epoch(epoch)

    def close(self) -> None:
        """End the balancer and print its summary; the end of the training function does so, too."""
        self._closed()


def moved(batch: Any, device: torch.device) -> Any:
    """Return a batch on another device: what Ray's loader moves, in containers of the same kinds.

    >>> moved({"x": torch.ones(2), "name": "a"}, torch.device("meta"))["x"].device
    device(type='meta')
    """
    if isinstance(batch, torch.Tensor):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, Mapping):
        return {name: moved(value, device) for name, value in batch.items()}
    if isinstance(batch, tuple):
        parts = [moved(part, device) for part in batch]
        return type(batch)(*parts) if hasattr(batch, "_fields") else tuple(parts)
    return [moved(part, device) for part in batch] if isinstance(batch, list) else batch


_OF_LOADER = LoaderOptions.__optional_keys__
"""The names of options that `Balancer.loader` takes, and not the balancer."""


def _ray_train_torch() -> Any:
    """Return the module `ray.train.torch`."""
    try:
        import ray.train.torch
    except ImportError as error:
        raise EvenstepError(
            "Ray Train must be installed: pip install 'evenstep[ray-train]'"
        ) from error
    return ray.train.torch


def _check_worker() -> None:
    if not (dist.is_available() and dist.is_initialized()):
        raise InvalidSetting(
            "prepare must be called inside of train_loop_per_worker of a TorchTrainer, which makes "
            "the process group, got none"
        )


def _check_straggler(straggler: str) -> None:
    if straggler == "restart":
        raise InvalidSetting(
            "straggler must be 'advise' or 'bench' under Ray Train, as 'restart' takes the agents "
            "of torchrun, got 'restart'"
        )


def _prepared_model(model: Any, of_ray: Any) -> DistributedDataParallel:
    """Return the model as Ray wraps it; also that of a single worker, which Ray does not wrap."""
    fsdp: Any = sys.modules.get("torch.distributed.fsdp")
    if isinstance(model, getattr(fsdp, "FullyShardedDataParallel", ())):
        raise InvalidSetting(
            "the model must be prepared with parallel_strategy='ddp', got one with 'fsdp', whose "
            "batch processing times cannot be measured"
        )
    if can_be_wrapped(model):
        model = of_ray.prepare_model(model)
        if not isinstance(without_compiler(model), DistributedDataParallel):
            model = DistributedDataParallel(model)
    wrapped: DistributedDataParallel = model
    return wrapped


def _source_of(loader: Any, of_ray: Any) -> Any:
    """Return what the samples come from: a DataLoader with Ray's order, or rows of Ray Data."""
    if isinstance(loader, DataLoader):
        # Batches are moved to the device later, one by one: Ray's loader would fetch them ahead.
        return of_ray.prepare_data_loader(loader, move_to_device=False)
    if not type(loader).__module__.startswith("ray.data"):
        return loader
    if not hasattr(loader, "iter_rows"):
        raise InvalidSetting(
            "data of Ray Data must be what ray.train.get_dataset_shard returns, as its rows are "
            f"put into batches of planned sizes, got an iterator over it ({type(loader).__name__})"
        )
    return loader.iter_rows()


def _total(loader: Any, given: int | None) -> int:
    """Return the samples of all workers in one iteration."""
    if given is not None:
        return given
    batch_size = getattr(loader, "batch_size", None)
    if not isinstance(loader, DataLoader) or batch_size is None:
        got = "batch_size=None" if isinstance(loader, DataLoader) else f"a {type(loader).__name__}"
        raise InvalidSetting(
            "total, the samples of all workers in one iteration, must be given unless the loader "
            f"is a DataLoader with a batch size, got {got}"
        )
    return int(batch_size) * dist.get_world_size()


def _outputs(log: Any) -> Sequence[Any]:
    """Return the run logs and loggers of the user."""
    if log is None:
        return ()
    return log if isinstance(log, Sequence) and not isinstance(log, str) else (log,)
