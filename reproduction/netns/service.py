"""The calls of the parameter server: the service of `parameters.thrift`, without sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from evenstep.errors import Refused
from evenstep.manager import wire
from evenstep.manager.buffers import Octets
from evenstep.manager.client_connection import ClientConnection, Replies
from reproduction.netns.idl import PARAMETER_SERVER, types
from reproduction.netns.training import NO_BATCH, Batch, Training

Waiting = tuple[ClientConnection, wire.Message, float]
"""The workers that have reported, with their call and the time of their last iteration."""


class TrainingService:
    """Lets workers train together, and wait for each other, for a number of iterations."""

    def __init__(
        self,
        training: Training,
        num_workers: int,
        iterations: int,
        before: Callable[[int], None],
    ) -> None:
        """`before` is called when iteration k is about to begin, with k."""
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the last update was made; failed after an error."""
        self._replies = Replies(PARAMETER_SERVER)
        self.refused = self._replies.refused
        self._training = training
        self._num_workers, self._iterations = num_workers, iterations
        self._before = before
        self._waiting: dict[int, Waiting] = {}
        self._iteration = 0
        """Of the next boundary."""
        self._calls: dict[str, Callable[[ClientConnection, wire.Message, Any], None]] = {
            "hello": self._hello,
            "report": self._report,
            "pull": self._pull,
            "push": self._push,
        }

    def handle(self, peer: ClientConnection, content: Octets) -> None:
        """Answer one message, now or when all workers have reported."""
        try:
            message = wire.parse_message(content)
            try:
                self._calls[message.name](peer, message, self._replies.arguments(message))
            except Refused as error:
                self._replies.refuse(peer, message, error)
        except Exception as error:
            # The run needs all workers, and the reason must not be lost.
            self.fail(error)

    def lost(self, peer: ClientConnection) -> None:
        """Record a closed connection: its worker ends, and its parent knows the reason."""

    def fail(self, error: Exception) -> None:
        """End the run with a reason, unless it is over."""
        if not self.over.done():
            self.over.set_exception(error)

    def _hello(self, peer: ClientConnection, message: wire.Message, arguments: Any) -> None:
        self._replies.reply(peer, message, self._replies.greeting(arguments))

    def _report(self, peer: ClientConnection, message: wire.Message, arguments: Any) -> None:
        worker = self._worker(arguments)
        if worker in self._waiting or not self._training.has_pushed(worker):
            raise Refused("OUT_OF_TURN", f"worker {worker} must push before it reports again")
        peer.busy = True
        self._waiting[worker] = (peer, message, arguments.batch_processing_time)
        if len(self._waiting) == self._num_workers:
            self._pass_boundary()

    def _pass_boundary(self) -> None:
        """End an iteration, begin the next, and answer all workers."""
        there = [self._waiting[worker] for worker in range(self._num_workers)]
        self._waiting = {}
        if self._iteration > 0:
            self._training.end([time for _, _, time in there])
        is_over = self._iteration == self._iterations
        batches = [NO_BATCH] * self._num_workers if is_over else self._begin()
        self._iteration += 1
        for (peer, message, _), batch in zip(there, batches, strict=True):
            peer.busy = False
            struct = types().Batch(samples=batch.samples.tolist(), computation=batch.computation)
            self._replies.reply(peer, message, struct)
        if is_over:
            self.over.set_result(None)

    def _begin(self) -> list[Batch]:
        self._before(self._iteration)
        return self._training.begin()

    def _pull(self, peer: ClientConnection, message: wire.Message, arguments: Any) -> None:
        self._replies.reply(peer, message, self._training.pull())

    def _push(self, peer: ClientConnection, message: wire.Message, arguments: Any) -> None:
        self._training.push(self._worker(arguments), arguments.gradient)
        self._replies.reply(peer, message)

    def _worker(self, arguments: Any) -> int:
        worker: int = arguments.worker
        if worker not in range(self._num_workers):
            text = f"worker must be from 0 to {self._num_workers - 1}, got {worker}"
            raise Refused("INVALID", text)
        return worker
