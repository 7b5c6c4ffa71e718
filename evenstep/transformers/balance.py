"""Balances a Trainer: its class gets a front that replaces the train loader and weighs losses."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import transformers
from numpy.typing import ArrayLike
from transformers import Trainer

from evenstep.errors import InvalidSetting
from evenstep.pytorch.loss_check import check_loss
from evenstep.transformers.balancing import Balancing
from evenstep.transformers.losses import Kind
from evenstep.transformers.train_loader import TrainLoader

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from evenstep.training.settings import Options

AnyTrainer = TypeVar("AnyTrainer", bound=Any)

_SUPPORTED_OF_TRL = ("trl.trainer.sft_trainer", "trl.trainer.base_trainer")


def balance(
    trainer: AnyTrainer,
    *,
    loss: Kind | None = None,
    counts: ArrayLike | None = None,
    **options: Unpack[Options],
) -> AnyTrainer:
    """Balance a Trainer or SFTTrainer over its workers, and return it.

    The total is that of the stock Trainer: `per_device_train_batch_size` times the number of
    workers, in each micro-batch. `loss` says what losses are, as for `evenstep.pytorch.Balancer`;
    without it they are examined in the first pass. `counts` is the work of each sample, such as its
    tokens. `options` are those of a Balancer. In a single process the trainer stays as it is.
    """
    _check_trainer(trainer)
    check_loss(loss)
    _check_options(options)
    if trainer.accelerator.num_processes == 1:
        _warn_of_separate_workers()
    else:
        check_parallelism(trainer)
        kind = type(trainer)
        trainer.__class__ = type(f"Balanced{kind.__name__}", (BalancedTrainer, kind), {})
        trainer.evenstep = Balancing(trainer, loss, counts, options)
        trainer.add_callback(trainer.evenstep)
    return trainer


class BalancedTrainer(Trainer):  # type: ignore[misc]
    """The methods that a balanced Trainer has in front of those of its own class."""

    evenstep: Balancing

    def train(self, resume_from_checkpoint: Any = None, *rest: Any, **named: Any) -> Any:
        """Train; the balanced loader skips the batches that a resumed training leaves out."""
        self.evenstep.resume(resume_from_checkpoint)
        with _skipping_by_loader():
            return super().train(resume_from_checkpoint, *rest, **named)

    def get_train_dataloader(self) -> TrainLoader:
        """Return the loader of this worker's batches, made from that of the stock Trainer."""
        return self.evenstep.make_loader(super().get_train_dataloader())

    def training_step(self, model: Any, inputs: Any, *rest: Any, **named: Any) -> Any:
        """Run the passes of a batch, which may have been fetched together with others."""
        self.evenstep.expect(inputs)
        return super().training_step(model, inputs, *rest, **named)

    def compute_loss(
        self,
        model: Any,
        inputs: Any,
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Any:
        """Compute the loss; one that is a mean over samples is weighed by the batch size."""
        compute = super().compute_loss
        if model.training and torch.is_grad_enabled():
            return self.evenstep.compute_weighed(
                compute, model, inputs, return_outputs, num_items_in_batch
            )
        return compute(model, inputs, return_outputs, num_items_in_batch)


@contextmanager
def _skipping_by_loader() -> Iterator[None]:
    """Let a balanced loader skip the batches of a resumed epoch itself.

    The Trainer has no method for that. The function of Accelerate that it calls would read the
    skipped batches from a DataLoader in place of the balanced one.
    """
    stock = getattr(transformers.trainer, "skip_first_batches", None)
    if stock is None:
        raise InvalidSetting(
            "transformers.trainer must have the function skip_first_batches, by which a resumed "
            f"training leaves out batches, got transformers {transformers.__version__} without it"
        )

    def skip_first_batches(loader: Any, num_batches: int = 0) -> Any:
        if isinstance(loader, TrainLoader):
            return loader.skip(num_batches)
        return stock(loader, num_batches)

    transformers.trainer.skip_first_batches = skip_first_batches
    try:
        yield
    finally:
        transformers.trainer.skip_first_batches = stock


def _check_trainer(trainer: Any) -> None:
    """Raise InvalidSetting unless this is a trainer of a kind that can be balanced."""
    if not isinstance(trainer, Trainer):
        raise InvalidSetting(
            f"balance takes a Trainer of transformers, got {type(trainer).__name__}"
        )
    if isinstance(trainer, BalancedTrainer):
        raise InvalidSetting("a trainer must be balanced once, and this one is balanced already")
    for kind in type(trainer).__mro__:
        if kind.__module__.startswith("trl.") and kind.__module__ not in _SUPPORTED_OF_TRL:
            raise InvalidSetting(
                "of the trainers of TRL only SFTTrainer can be balanced, as others gather values "
                f"of single samples from equal batches, got {type(trainer).__name__}"
            )
    if trainer.args.auto_find_batch_size:
        raise InvalidSetting(
            "auto_find_batch_size must be False, as batch sizes are planned, got True: maximum= is "
            "the largest batch of a worker"
        )


def _check_options(options: Options) -> None:
    """Raise InvalidSetting for options of a Balancer that a Trainer cannot have."""
    if options.get("minimum") == 0:
        raise InvalidSetting(
            "minimum must be at least 1 under a Trainer, as the tokens of borrowed samples would "
            "count in num_items_in_batch, got 0"
        )
    for name in ("total", "micro_batches", "straggler", "checkpoint"):
        if name in options:
            raise InvalidSetting(
                f"{name} must be left out under a Trainer, which has its own batch sizes, passes "
                "and checkpoints, got it"
            )


def _warn_of_separate_workers() -> None:
    """Warn if there are several workers of which each trains alone."""
    num_started = int(os.environ.get("WORLD_SIZE", "1"))
    if num_started > 1:
        warnings.warn(
            f"{num_started} workers were started, but the Trainer of each trains alone, as a stock "
            "one does without a GPU: TrainingArguments(use_cpu=True) makes them train together",
            stacklevel=3,
        )


def check_parallelism(trainer: Any) -> None:
    """Raise InvalidSetting unless every worker has the whole model, in DDP."""
    kinds = {
        "FSDP": trainer.is_fsdp_enabled,
        "DeepSpeed": trainer.is_deepspeed_enabled,
        "tensor parallelism": trainer.get_tp_size() > 1,
        "context parallelism": trainer.get_cp_size() > 1,
        "sequence parallelism": trainer.get_sp_size() > 1,
    }
    got = [name for name, is_used in kinds.items() if is_used]
    kind = str(trainer.accelerator.distributed_type.value)
    if got or not kind.startswith("MULTI_"):
        raise InvalidSetting(
            "a balanced Trainer must have the whole model on each worker, in "
            f"DistributedDataParallel, got {' and '.join(got) or kind}"
        )
