"""The balancer of a DDP model, as a training script uses it.

The loader begins every iteration of the loop, and DDP's communication hook ends it. At the end of
an iteration the gradient exchange carries the reports of all workers; at the start of the next one
every worker computes the same plan from the same reports.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, overload

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, IterableDataset

from evenstep.errors import InvalidSetting
from evenstep.pytorch.attribution import (
    Attribution,
    Samples,
    adopt_batch,
    begin_iteration,
    deal_samples,
)
from evenstep.pytorch.checks import can_be_wrapped, check_parallelism, wrapper_of
from evenstep.pytorch.compatibility import without_compiler
from evenstep.pytorch.ddp_loop import make_ddp_loop
from evenstep.pytorch.exchange import UserHook
from evenstep.pytorch.gradients import Gradients
from evenstep.pytorch.loader import BalancedLoader, UnboundLoader, make_loader
from evenstep.pytorch.loader_options import LoaderOptions, LocalLoaderOptions
from evenstep.pytorch.local_loader import LocalLoader, make_local_loader
from evenstep.pytorch.loss_weights import as_number
from evenstep.pytorch.micro_batches import LossOf
from evenstep.pytorch.straggler import Checkpoint
from evenstep.pytorch.stream_loader import StreamLoader
from evenstep.training.balancer_base import BalancerBase
from evenstep.training.iteration import Pass
from evenstep.training.settings import Options

if TYPE_CHECKING:
    from typing_extensions import Unpack


class Balancer(BalancerBase):
    """Balances a DistributedDataParallel model over its workers.

    `total` is X, the samples of all workers in one iteration; everything else has a default.
    `mode` is `balanced`, `static` (with `shares`), `observe` (plain BSP, with an estimate at the
    end of the time that balancing would save) or `off`. `loss` says what losses are: a `mean` over
    the samples of this worker, their `sum`, or a sum divided by a count over all workers
    (`global`); without it they are taken for means, and checked. `micro_batches` lets a plan
    exceed the memory of a worker, which then runs its batch in pieces. `straggler` is `advise`,
    `bench` or `restart` (with `checkpoint`, a function that saves one). `comm_hook` is a
    communication hook of your own, as `(state, hook)`. `evenstep.training.settings.Options`
    documents the options that all frameworks share.
    """

    def __init__(
        self,
        model: torch.nn.Module | None = None,
        total: int | None = None,
        *,
        loss: str | None = None,
        micro_batches: bool = False,
        straggler: str = "advise",
        checkpoint: Checkpoint | None = None,
        comm_hook: UserHook | None = None,
        **options: Unpack[Options],
    ) -> None:
        if total is None:
            raise InvalidSetting(
                "total, the samples of all workers in one iteration, must be given"
            )
        self._total, self._given, self._own_batches = total, model, Pass()
        self._how = loss, micro_batches, straggler, checkpoint, comm_hook, options
        check_parallelism(model)
        if not can_be_wrapped(model):
            self.bind(model)

    def bind(self, model: Any) -> None:
        """Balance this DistributedDataParallel model, if the balancer was made without it.

        For trainers that wrap the model themselves, after the balancer and its loaders are made. A
        balancer of a model that is wrapped later binds itself at the first iteration. All workers
        must call it.
        """
        if "_loop" in self.__dict__:
            raise InvalidSetting("a balancer must be bound to one model, and this one has one")
        loss, *_, comm_hook, _ = self._how
        self._loop, self._collective = make_ddp_loop(model, self._total, *self._how)
        self._model: DistributedDataParallel = without_compiler(model)
        self._attribution = Attribution(self._loop)
        self._gradients = Gradients(
            self._model, self._loop, self._attribution, self._collective.inflight, comm_hook, loss
        )

    def __getattr__(self, name: str) -> Any:
        """Bind the balancer to the model that wraps its own, when it is needed for the first time.

        Called for attributes that do not exist, which are those that `bind` sets.
        """
        if name not in ("_loop", "_collective", "_model", "_attribution", "_gradients"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        self.bind(wrapper_of(self.__dict__.get("_given")))
        return self.__dict__[name]

    @property
    def minimum(self) -> int:
        """The smallest batch size that a plan may give to a worker."""
        return self._loop.minimum

    @property
    def gradient_weight(self) -> float:
        """The factor ``n x_i / X`` of the current batch, before a plain mean over the workers.

        For trainers that weigh losses themselves, with ``loss="global"``; 0 for borrowed samples.
        """
        return self._loop.num_workers * self._loop.weight

    @overload
    def loader(  # type: ignore[overload-overlap]
        self, dataset: IterableDataset[Any], **options: Unpack[LoaderOptions]
    ) -> StreamLoader: ...
    @overload
    def loader(  # type: ignore[overload-overlap]
        self, dataset: Dataset[Any] | DataLoader[Any], **options: Unpack[LoaderOptions]
    ) -> BalancedLoader: ...
    @overload
    def loader(self, dataset: Iterable[Any], **options: Unpack[LoaderOptions]) -> StreamLoader: ...
    def loader(self, dataset: Any, **options: Unpack[LoaderOptions]) -> Any:
        """Return a loader of this worker's batches, in place of a sampler and a DataLoader.

        Takes `shuffle`, `sampler`, `drop_last`, `pad`, `seed`, `seed_samples`, `counts`,
        `collate_fn`, `num_workers`, and the other settings of a DataLoader. An existing DataLoader
        in place of the data set provides those that are left out. The samples of an iteration are
        those that a DistributedSampler and a DataLoader would deal to all workers together. All
        workers must call it, also for a loader that only one of them uses.

        A stream (an IterableDataset, any iterable without an index, or a DataLoader over one) is
        read by each worker for itself; see `StreamLoader`. It takes `stop`, `ahead`, `collate_fn`,
        `num_workers`, and the other settings of a DataLoader.
        """
        make = partial(self._make_loader, dataset, options)
        if "_loop" in self.__dict__:
            return make()
        return UnboundLoader(make, dataset, self._total, options)

    def local_loader(self, partition: Any, **options: Unpack[LocalLoaderOptions]) -> LocalLoader:
        """Return a loader of this worker's own samples: a partition, its folder, or a data set.

        Takes `rule` (when samples migrate), `importance`, `serving`, `shuffle`, `seed`, and the
        settings of a DataLoader. All workers must call it.
        """
        if options.get("importance") and self._how[0] in ("sum", "global"):
            raise InvalidSetting(
                "loss must be 'mean' with importance=True, as gradients are weighed by the sizes "
                f"of partitions, got {self._how[0]!r}"
            )
        return make_local_loader(
            self._loop, self._attribution, self.average_buffers, partition, options
        )

    def _make_loader(self, dataset: Any, options: LoaderOptions) -> Any:
        return make_loader(
            self._loop, self._attribution, self._collective, self.average_buffers, dataset, options
        )

    def begin_iteration(self) -> int:
        """Begin an iteration, and return how many samples this worker makes for its batch.

        For scripts that make their own batches, from random positions of a file, say. Batches may
        be made ahead: gradients are computed on them in the order in which they were begun. All
        workers must call it.
        """
        return begin_iteration(self._loop, self._attribution, self._own_batches)

    def deal(self, samples: Samples) -> Samples:
        """Begin an iteration with these samples of all workers, and return those of this worker.

        `samples` is a sequence or tensor with `total` entries, such as indices, the same on all
        workers; fewer at the end of an epoch. All workers must call it.
        """
        return deal_samples(self._loop, self._attribution, self._own_batches, samples)

    def adopt(self, of: Pass, samples: int, fetch: Callable[[], Any], is_next: bool = False) -> Any:
        """Begin an iteration with the batch that `fetch` gets from a stock loader, and return it.

        It has the same number of samples on all workers, and its gradients the weight that plain
        DDP gives them. `of` is the pass over that loader; `is_next` says that the next passes of
        the model run on it, or on a batch of the same weight. All workers must call it.
        """
        return adopt_batch(self._loop, self._attribution, of, samples, fetch, is_next)

    @property
    def has_exchanged(self) -> bool:
        """Whether the gradients of the current batch were exchanged, or kept for an exchange."""
        return self._loop.now.is_retired

    def spoil_time(self) -> None:
        """Leave the time of the running iteration out of the reports: it was not all measured."""
        self._loop.timer.spoil()

    def on(self, batch: Any) -> None:
        """Say that the next passes run on this batch, which came from a loader or from `deal`.

        Needed only where UnknownBatch says so: the script fetched batches ahead, and the inputs of
        the model are copies without an entry per sample.
        """
        self._attribution.expect(batch)

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

    def close(self) -> None:
        """Stop background work, print the summary, and leave the model inside DDP as it was."""
        self._gradients.detach()
        super().close()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a checkpoint, also one of another number of workers.

        Workers are matched by name.
        """
        known = self._loop.load_state_dict(state)
        self._gradients.restart(known.cap)
