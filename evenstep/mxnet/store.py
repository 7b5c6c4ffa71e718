"""The weighted store: the kvstore of a Trainer or a Module.

Within an exchange, gradients are weighted before they are pushed, and pulls are deferred until
every worker has pushed. A server acknowledges a push only then, so that the time before is waiting,
and the time after is this worker's own pull.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import mxnet as mx

from evenstep.errors import InvalidSetting, OutOfTurn
from evenstep.mxnet.collective import FIRST_ROWS, RowCarrier


class WeightedStore(mx.kvstore.KVStoreBase):  # type: ignore[misc]  # MXNet is not annotated
    """A kvstore that weights the gradients pushed between `open` and `close`."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self._numbers: dict[str, int] = {}
        # A store never frees keys: a further training gets keys after those of the last one.
        self._taken: set[int] = vars(store).setdefault("evenstep_parameters", set())
        self._first = max(self._taken, default=-1) + 1
        self._has_optimizer = False
        self._factor: float | None = None
        self._computed: list[Any] = []
        self._deferred: list[tuple[int, Any, int]] = []

    @property
    def type(self) -> str:
        """The type of the underlying store."""
        return str(self._store.type)

    @property
    def rank(self) -> int:
        return int(self._store.rank)

    @property
    def num_workers(self) -> int:
        return int(self._store.num_workers)

    def open(self, factor: float) -> None:
        """Begin an exchange: multiply all pushes by `factor` from now on."""
        self._factor = factor

    def wait_for_gradients(self) -> None:
        """Return when all gradients pushed are computed, received or not."""
        for array in self._computed:
            array.wait_to_read()
        self._computed.clear()

    def pull_all(self) -> None:
        """Make the deferred pulls."""
        for key, out, priority in self._deferred:
            self._store.pull(key, out=out, priority=priority)
        self._deferred.clear()

    def close(self) -> None:
        """End the exchange."""
        self._factor = None
        self._computed.clear()
        self._deferred.clear()

    def init(self, key: Any, value: Any) -> None:
        """Give a key its first value, that of worker 0."""
        self._store.init(self._new(key), value)

    def broadcast(self, key: Any, value: Any, out: Any, priority: int = 0) -> None:
        """Give a key the value of worker 0, and pull it."""
        self._store.broadcast(self._new(key), value, out, priority)
        # MXNet may run the pull after a later push, which would change the value.
        mx.nd.waitall()

    def push(self, key: Any, value: Any, priority: int = 0) -> None:
        """Add weighted gradients to those of all workers."""
        if self._factor is None:
            raise OutOfTurn(
                "gradients must be pushed by balancer.step(trainer), balancer.update(module) or "
                f"within balancer.exchanging(), got a push of key {key!r} outside of them"
            )
        self._computed.extend(_arrays(value))
        self._store.push(self._number(key), _times(value, self._factor), priority)

    def pull(self, key: Any, out: Any = None, priority: int = 0, **_: Any) -> None:
        """Fetch the value of a key: at once, or when all workers have pushed."""
        if self._factor is None:
            self._store.pull(self._number(key), out=out, priority=priority)
        else:
            self._deferred.append((self._number(key), out, priority))

    def pushpull(self, key: Any, value: Any, out: Any = None, priority: int = 0) -> None:
        """Add weighted gradients to those of all workers, and fetch the result."""
        if out is not None:
            self.push(key, value, priority)
            self.pull(key, out, priority)
            return
        # The sum replaces the gradients at once, as the caller is about to use it. MXNet pulls into
        # the arrays pushed, so that only a copy shows when the gradients were computed.
        computed = [array.copy() for array in _arrays(value)]
        self.push(key, value, priority)
        self._computed[-len(computed) :] = computed
        self._store.pull(self._number(key), out=value, priority=priority)

    def set_optimizer(self, optimizer: Any) -> None:
        """Let the servers update parameters by this optimizer."""
        self._store.set_optimizer(RowCarrier(optimizer, self._first))
        self._has_optimizer = True
        vars(self._store)["evenstep_optimizer"] = True

    def is_capable(self, capability: str) -> bool:
        """Return whether the underlying store has a capability."""
        return bool(self._store.is_capable(capability))

    def set_gradient_compression(self, compression_params: Any) -> None:
        """Refuse: compression would change the rows that workers exchange."""
        raise InvalidSetting(
            "gradient compression must be off, as it would compress the workers' reports too, "
            f"got {compression_params!r}"
        )

    def save_optimizer_states(self, fname: str, dump_optimizer: bool = False) -> None:
        """Save the optimizer's state, where it is in this process."""
        self._store.save_optimizer_states(fname, dump_optimizer)

    def load_optimizer_states(self, fname: str) -> None:
        """Take up the optimizer's state, where it is in this process."""
        self._store.load_optimizer_states(fname)

    def _new(self, key: Any) -> int:
        """Return the number of a key that is to be made: twice, it would wait forever."""
        number = self._number(key)
        if "evenstep_optimizer" in vars(self._store) and not self._has_optimizer:
            raise InvalidSetting(
                "update_on_kvstore must be True, as an earlier training has given the kvstore an "
                "optimizer, which it keeps, got False"
            )
        if number in self._taken:
            raise InvalidSetting(
                "the kvstore of a balancer must have one Trainer or Module, as further parameters "
                f"would be taken for those of the first, got key {key!r} again"
            )
        self._taken.add(number)
        return number

    def _number(self, key: Any) -> int:
        """Return the number of a key: keys of parameters and rows must be of one kind.

        Names get the numbers that MXNet would give them, in the order of their first use, as
        optimizers find settings of single parameters by them.
        """
        if isinstance(key, str):
            key = self._numbers.setdefault(key, len(self._numbers))
        number = self._first + int(key)
        if not 0 <= number < FIRST_ROWS:
            raise InvalidSetting(f"the key of a parameter must be below {FIRST_ROWS}, got {number}")
        return number


def _arrays(value: Any) -> Iterator[Any]:
    """Yield the arrays of a value: one for each device."""
    if isinstance(value, (list, tuple)):
        yield from value
    else:
        yield value


def _times(value: Any, factor: float) -> list[Any]:
    """Return a value times a factor; 0 times anything, NaN too, is 0."""
    if factor == 1:
        return list(_arrays(value))
    if factor == 0:
        return [mx.nd.zeros_like(array) for array in _arrays(value)]
    return [array * factor for array in _arrays(value)]
