"""The interface of predictors: the speed models F_i of all workers, in one object.

The order of calls is always: predict, then measure, then observe. `predict` changes nothing.
All arrays have one entry per worker; a speed of NaN means that the worker has no observation this
time. Predictions are finite and positive from the start: a worker without observations is predicted
the median of the others, and before the first observation all workers are alike.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

from numpy.typing import NDArray

from evenstep.core.arrays import Floats, Ints
from evenstep.core.rows import Arrays


class Predictor(Protocol):
    """Predicts the speed v of every worker in the coming iteration."""

    @property
    def num_workers(self) -> int: ...

    def predict(self, cpu: Floats, memory: Floats) -> Floats:
        """Return v for the iteration that starts with this usage; changes nothing."""
        ...

    def observe(self, speeds: Floats, cpu: Floats, memory: Floats) -> None:
        """Learn the speeds of an iteration, with the usage at *its* start."""
        ...

    def remap(self, keep: Ints) -> None:
        """Continue with other members: `keep` holds their old positions, -1 for newcomers."""
        ...

    def state(self) -> Arrays:
        """Return everything learned, as arrays to be saved."""
        ...

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Restore a saved state, or raise StateFileError and change nothing if it does not fit."""
        ...


@runtime_checkable
class Trainable(Protocol):
    """A predictor whose models are trained off the decision path."""

    def training(self) -> Callable[[], object] | None:
        """Return the work of a training that is due, or None; it may run anywhere at any time.

        The work holds copies of what it needs and changes nothing.
        """
        ...

    def adopt(self, result: object) -> None:
        """Use the models that a training returned, from the next prediction on."""
        ...
