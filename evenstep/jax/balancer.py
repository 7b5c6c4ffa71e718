"""The balancer of a JAX loop: the object that a training script uses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from evenstep.errors import InvalidSetting
from evenstep.jax.buckets import choose_bucket
from evenstep.jax.collective import ProcessCollective, ProcessSum
from evenstep.jax.gradient import JoinedGradient
from evenstep.jax.loader import BalancedLoader, Fetch, PendingBatch, fetch_from
from evenstep.jax.loss_weights import Loss, LossWeights
from evenstep.training.balancer_base import BalancerBase
from evenstep.training.epochs import DealingOptions, Epochs
from evenstep.training.loop_setup import make_loop
from evenstep.training.settings import LoopOptions, check_names

if TYPE_CHECKING:
    from typing_extensions import Unpack


class Balancer(BalancerBase):
    """Balances a training over the processes of jax.distributed, each with one device.

    `total` is X, the samples of all workers in one iteration; everything else has a default.
    Batch sizes are planned in multiples of `bucket`, and batches are padded to them: each size that
    a worker meets is compiled once. The other settings are those of `evenstep.pytorch.Balancer`.
    All workers must make one.
    """

    def __init__(
        self,
        total: int,
        *,
        bucket: int | None = None,
        **options: Unpack[LoopOptions],
    ) -> None:
        check_names(options, LoopOptions.__optional_keys__)
        coordinator = options.get("coordinator")
        self._sum = ProcessSum()
        self.bucket = choose_bucket(bucket, total, self._sum.num_workers, coordinator)
        self._loop = make_loop(
            ProcessCollective(self._sum), total, framework="jax", granularity=self.bucket,
            device=self._sum.device.platform, **options,
        )  # fmt: skip
        self._pending = PendingBatch()

    def loader(
        self,
        data: Any = None,
        *,
        fetch: Fetch | None = None,
        num_samples: int | None = None,
        **dealing: Unpack[DealingOptions],
    ) -> BalancedLoader:
        """Return this worker's batches of arrays, or of the samples that `fetch` returns.

        `data` is a tree of arrays with an entry per sample, such as a pair of images and labels;
        instead, `fetch` may return such a tree for an array of indices below `num_samples`. The
        other options are `shuffle`, `seed`, `drop_last` and `pad`. All workers must call it.
        """
        if (data is None) == (fetch is None) or (fetch is None) != (num_samples is None):
            raise InvalidSetting("a loader must have data, or else fetch and num_samples")
        if fetch is None or num_samples is None:
            fetch, num_samples = fetch_from(data)
        epochs = Epochs.of_loop(self._loop, num_samples, **dealing)
        return BalancedLoader(self._loop, self._pending, self.bucket, epochs, fetch)

    def value_and_grad(
        self, loss_fn: Loss, *, has_aux: bool = False, counted: bool = False
    ) -> JoinedGradient:
        """Return a replacement of ``jax.jit(jax.value_and_grad(loss_fn))``.

        ``loss_fn(params, *batch, **others)`` returns one loss per sample, not their mean. The
        function returned takes the same arguments, and returns the loss and gradient of the mean
        over the samples of all workers. With `has_aux`, `loss_fn` returns ``(losses, figures)``: a
        tree of figures per sample, whose means are returned with the loss. With `counted`, it
        returns ``(losses, counts)`` in place of losses: sums over the tokens of each sample, and
        their number; the mean is over all tokens.
        """
        weights = LossWeights(loss_fn, has_aux, counted)
        return JoinedGradient(weights, self._loop, self._pending, self._sum, self.bucket)
