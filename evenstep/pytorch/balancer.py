"""The balancer of a DDP model, as a training script uses it.

The loader begins every iteration of the loop, and DDP's communication hook ends it. At the end of
an iteration the gradient exchange carries the reports of all workers; at the start of the next one
every worker computes the same plan from the same reports.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

from evenstep.pytorch.compatibility import without_compiler
from evenstep.pytorch.ddp_loop import make_ddp_loop
from evenstep.pytorch.exchange import UserHook
from evenstep.pytorch.gradients import Gradients
from evenstep.pytorch.loader import BalancedLoader, make_loader
from evenstep.pytorch.loader_options import LoaderOptions, LocalLoaderOptions
from evenstep.pytorch.local_loader import LocalLoader, make_local_loader
from evenstep.pytorch.loss_weights import as_number
from evenstep.pytorch.micro_batches import LossOf
from evenstep.pytorch.straggler import Checkpoint
from evenstep.training.balancer_base import BalancerBase
from evenstep.training.settings import Options

if TYPE_CHECKING:
    from typing_extensions import Unpack


class Balancer(BalancerBase):
    """Balances a DistributedDataParallel model over its workers.

    `total` is X, the samples of all workers in one iteration; everything else has a default.
    `mode` is `balanced`, `static` (with `shares`), `observe` (plain BSP, with an estimate at the
    end of the time that balancing would save) or `off`. `micro_batches` lets a plan exceed the
    memory of a worker, which then runs its batch in pieces. `straggler` is `advise`, `bench` or
    `restart` (with `checkpoint`, a function that saves one). `comm_hook` is a communication hook of
    your own, as `(state, hook)`. `evenstep.training.settings.Options` documents the options that
    all frameworks share.
    """

    def __init__(
        self,
        model: DistributedDataParallel,
        total: int,
        *,
        micro_batches: bool = False,
        straggler: str = "advise",
        checkpoint: Checkpoint | None = None,
        comm_hook: UserHook | None = None,
        **options: Unpack[Options],
    ) -> None:
        self._loop, self._collective = make_ddp_loop(
            model, total, micro_batches, straggler, checkpoint, comm_hook, options
        )
        self._model: DistributedDataParallel = without_compiler(model)
        self._gradients = Gradients(self._model, self._loop, self._collective.inflight, comm_hook)

    @property
    def minimum(self) -> int:
        """The smallest batch size that a plan may give to a worker."""
        return self._loop.minimum

    def loader(
        self, dataset: Dataset[Any] | DataLoader[Any], **options: Unpack[LoaderOptions]
    ) -> BalancedLoader:
        """Return a loader of this worker's batches, in place of a sampler and a DataLoader.

        Takes `shuffle`, `sampler`, `drop_last`, `seed`, `seed_samples`, `counts`, `collate_fn`,
        `num_workers`, and the other settings of a DataLoader. An existing DataLoader in place of
        the data set provides those that are left out. All workers must call it, also for a loader
        that only one of them uses.
        """
        return make_loader(self._loop, self._collective, self.average_buffers, dataset, options)

    def local_loader(self, partition: Any, **options: Unpack[LocalLoaderOptions]) -> LocalLoader:
        """Return a loader of this worker's own samples: a partition, its folder, or a data set.

        Takes `rule` (when samples migrate), `importance`, `serving`, `shuffle`, `seed`, and the
        settings of a DataLoader. All workers must call it.
        """
        return make_local_loader(self._loop, self.average_buffers, partition, options)

    def backward(self, loss_of: LossOf, *batch: Any) -> torch.Tensor:
        """Run forward and backward passes of a batch, in pieces if memory is short.

        In place of ``loss = loss_of(*batch); loss.backward()``, where `loss_of` returns the mean
        loss over the samples of a batch or of a piece of it. When memory runs out, the same samples
        are run again in smaller pieces. Returns the detached loss: the mean over the batch or,
        where `loss_of` calls `weigh`, the sum of the weighed losses.
        """
        return self._gradients.backward(loss_of, batch)

    def weigh(self, loss: torch.Tensor, count: float | torch.Tensor) -> torch.Tensor:
        """Return the loss to call backward on, if it is a mean over `count` tokens or pixels.

        Gradients are then those of the mean over the tokens of all workers, also with
        accumulation. All workers must call it once for each backward pass, or none at all.
        """
        return self._gradients.weigh(loss, count)

    def include(self, model: DistributedDataParallel, comm_hook: UserHook | None = None) -> None:
        """Weigh the gradients of a further model that trains on the same batches, as in a GAN.

        Give the balancer to the model that is trained last in the body of the loop: work after its
        backward pass is not measured. All workers must call it.
        """
        self._gradients.include(model, comm_hook)

    def mean(self, value: float | torch.Tensor, count: float | torch.Tensor | None = None) -> float:
        """Return the mean over all samples of the iteration, given the mean over this batch.

        With a `count`, such as the number of tokens, it is weighted by the counts of all workers.
        All workers must call it. The wait for the others does not count as work.
        """
        counted = None if count is None else self._gradients.counted(count)
        return self._loop.mean(as_number(value), counted)

    def average_buffers(self) -> None:
        """Average the buffers (BatchNorm's running statistics), weighted by batch sizes.

        For evaluation and checkpoints in mid-epoch; loaders do it at the end of an epoch.
        All workers must call it.
        """
        self._gradients.average_buffers()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a checkpoint, also one of another number of workers.

        Workers are matched by name.
        """
        known = self._loop.load_state_dict(state)
        self._gradients.restart(known.cap)
