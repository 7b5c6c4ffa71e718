"""The balancer of a training with a synchronous parameter server, as the paper has it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from evenstep.tensorflow.balancer_base import BalancerBase
from evenstep.tensorflow.dataset import BalancedDataset
from evenstep.tensorflow.fetching import Map
from evenstep.tensorflow.server_connection import ServerConnection
from evenstep.tensorflow.summing import Gradient
from evenstep.tensorflow.update import wait_for
from evenstep.tensorflow.vectors import VectorLayout
from evenstep.training.epochs import DealingOptions
from evenstep.training.loop_setup import make_loop
from evenstep.training.settings import Options, check_names

if TYPE_CHECKING:
    from typing_extensions import Unpack


class ServerBalancer(BalancerBase):
    """Balances the loops of workers that pull from, and push to, one `ParameterServer`.

    `worker` is the number of this worker, from 0; `variables` are those of its model, in the order
    of the server's. With a `coordinator`, as `evenstep.connect` returns it, a manager makes the
    plans; the other settings are those of `Balancer`. All workers must make one.
    """

    def __init__(
        self,
        address: str,
        token: str,
        worker: int,
        variables: Sequence[Any],
        total: int,
        *,
        patience: float = 60.0,
        device: str = "cpu",
        min_trainable: int = 1,
        **options: Unpack[Options],
    ) -> None:
        check_names(options, Options.__optional_keys__)
        self._layout = VectorLayout(variables)
        self._server = ServerConnection(address, token, worker, patience)
        self._loop = make_loop(
            self._server,
            total,
            framework="tensorflow",
            device=device,
            min_trainable=min_trainable,
            **options,
        )
        self._loop.agree({"the number of parameters": self._layout.length})

    def dataset(
        self, tensors: Any, map: Map | None = None, **how: Unpack[DealingOptions]
    ) -> BalancedDataset:
        """Return this worker's batches of some samples, as `Balancer.dataset` does.

        The parameters are pulled before a batch is fetched, within the batch processing time.
        """
        return BalancedDataset(self._loop, tensors, map, begun=self._pull, **how)

    def push(self, gradients: Sequence[Gradient]) -> None:
        """Push the gradients of the mean over this worker's batch, and wait for the update.

        Replaces ``optimizer.apply(gradients, variables)``. The batch processing time ends when the
        push of this worker has arrived; waiting for the others comes after that.
        """
        wait_for(gradients)
        self._server.push(self._layout.gradients(gradients, self._loop.weight))
        self._loop.finish()
        rows = self._server.settle(self._loop.slots().ravel().astype(np.float64))
        self._loop.take(rows.sum(axis=0).astype(np.float32))

    def pull(self) -> None:
        """Load the newest parameters into this worker's model, for an evaluation, say."""
        with self._loop.away():
            self._pull()

    def close(self) -> None:
        """Leave the server, and print the summary."""
        self._loop.close()
        self._server.close()

    def _pull(self) -> None:
        self._layout.assign(self._server.pull())
