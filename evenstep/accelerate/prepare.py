"""`prepare`: what `accelerator.prepare` returns, with a balanced loader for training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from accelerate import Accelerator
from accelerate.utils import DistributedType
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset

from evenstep.accelerate.gathering import follow_loader
from evenstep.accelerate.loader import AcceleratedLoader
from evenstep.errors import InvalidSetting
from evenstep.pytorch import Balancer
from evenstep.pytorch.compatibility import without_compiler
from evenstep.pytorch.loader_options import batches_of

REFUSED = {
    DistributedType.DEEPSPEED: "DeepSpeed exchanges gradients itself",
    DistributedType.MEGATRON_LM: "Megatron-LM makes batches and exchanges gradients itself",
    DistributedType.XLA: "XLA compiles a program for each batch size",
}


def prepare(
    accelerator: Accelerator,
    *objects: Any,
    train: DataLoader[Any] | None = None,
    device_placement: Sequence[bool] | None = None,
    **options: Any,
) -> Any:
    """Prepare objects as `accelerator.prepare` does, and balance the loader of the training.

    That is the first DataLoader, or `train`, which must be one of the objects; further ones, for
    evaluation, stay Accelerate's own. `options` are those of a Balancer, except for `total`: that
    is the batch size of the DataLoader times the number of processes or, with `split_batches`, the
    batch size itself. The balancer is `loader.balancer`. With one process, everything is
    Accelerate's own. All workers must call it.
    """
    source = _training_loader(objects, train)
    check_accelerator(accelerator)
    placement = None if device_placement is None else list(device_placement)
    if accelerator.num_processes == 1:
        return accelerator.prepare(*objects, device_placement=placement)
    _check_source(source)
    if "total" in options:
        raise InvalidSetting(
            "total must be left out, as it is the batch size of the DataLoader times the number of "
            f"processes, or with split_batches the batch size itself, got {options['total']}"
        )
    prepared = accelerator.prepare(*objects, device_placement=placement)
    # With a single object, accelerator.prepare returns it instead of a tuple.
    prepared = prepared if len(objects) > 1 else (prepared,)
    at = next(i for i, one in enumerate(objects) if one is source)
    batch_size, num_workers = batches_of(source).batch_size, accelerator.num_processes
    total = batch_size if accelerator.split_batches else batch_size * num_workers
    if batches_of(source).drop_last:
        multiple = 1
    elif accelerator.dispatch_batches:
        multiple = num_workers
    else:
        multiple = total if accelerator.even_batches else 1
    balancer = Balancer(_model_in(prepared), total, **options)
    loader = AcceleratedLoader(accelerator, balancer, source, prepared[at], multiple)
    accelerator.register_for_checkpointing(loader)
    follow_loader(accelerator, loader)
    return (*prepared[:at], loader, *prepared[at + 1 :])


def check_accelerator(accelerator: Accelerator) -> None:
    """Raise InvalidSetting unless the workers of an accelerator each have batches of their own."""
    kind = accelerator.distributed_type
    if kind == DistributedType.FSDP:
        raise InvalidSetting(
            "accelerator.distributed_type must be one that uses DistributedDataParallel, got FSDP: "
            "leave the FSDP plugin out or, if the model is too large for one worker, shard it with "
            "torch.distributed.fsdp.fully_shard and take a ShardedBalancer"
        )
    if kind in REFUSED:
        raise InvalidSetting(
            "accelerator.distributed_type must be one that uses DistributedDataParallel, as "
            f"{REFUSED[kind]}, got {kind.value}: leave its plugin and settings out"
        )
    parallel = getattr(accelerator, "parallelism_config", None)
    if parallel is not None and parallel.total_size != parallel.dp_replicate_size:
        got = ", ".join(parallel.active_mesh_dims)
        raise InvalidSetting(
            "the parallelism of an accelerator must be over data, where every worker has batches "
            f"of its own and the whole model, got a mesh of {got}: leave parallelism_config out"
        )


def _training_loader(objects: Sequence[Any], train: Any) -> DataLoader[Any]:
    if train is not None:
        found = [one for one in objects if one is train]
    else:
        found = [one for one in objects if isinstance(one, DataLoader)]
    if not found:
        got = ", ".join(type(one).__name__ for one in objects) or "nothing"
        raise InvalidSetting(
            f"the objects to prepare must include the DataLoader of the training, got {got}"
        )
    loader: DataLoader[Any] = found[0]
    return loader


def _check_source(source: DataLoader[Any]) -> None:
    """Raise InvalidSetting unless the batches of a DataLoader can have other sizes."""
    if getattr(source, "_is_accelerate_prepared", False):
        raise InvalidSetting(
            "the DataLoader of the training must be the script's own, got one that Accelerate has "
            "prepared: give it to evenstep.accelerate.prepare only"
        )
    if isinstance(source.dataset, IterableDataset):
        raise InvalidSetting(
            "the data set of the training must be map-style (with __getitem__ and __len__), got a "
            f"{type(source.dataset).__name__}, which Accelerate would read on one worker for all: "
            "with a stream that each worker reads for itself, prepare the model and take "
            "Balancer(model, total).loader(stream)"
        )
    if isinstance(batches_of(source).sampler, DistributedSampler):
        raise InvalidSetting(
            "the sampler of the DataLoader must order the whole data set, as Accelerate deals it "
            "out to the workers, got a DistributedSampler: leave it out"
        )


def _model_in(prepared: Sequence[Any]) -> Any:
    """Return the model that is trained."""
    models = [one for one in prepared if isinstance(without_compiler(one), DistributedDataParallel)]
    if len(models) != 1:
        raise InvalidSetting(
            "the objects to prepare must include exactly one model that is trained, got "
            f"{len(models)}: with several, prepare them and take evenstep.pytorch.Balancer, whose "
            "method include takes further models"
        )
    return models[0]
