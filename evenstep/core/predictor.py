"""The interface of predictors: the speed models F_i of all workers in one object.

The order of calls is always: predict, then measure, then observe. `predict` changes nothing.
All arrays have one entry per worker; a speed of NaN means no observation in that iteration.
Predictions are finite and positive from the start: a worker never seen is like the median of those
seen, and before the first observation all workers are alike.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

from numpy.typing import NDArray

from evenstep.core.arrays import Floats, Ints
from evenstep.core.rows import Arrays


class Predictor(Protocol):
    """Predicts the speed v of every worker in the next iteration."""

    @property
    def num_workers(self) -> int: ...

    def predict(self, cpu: Floats, memory: Floats) -> Floats:
        """Return v for the iteration that starts with this usage; changes nothing."""
        ...

    def observe(self, speeds: Floats, cpu: Floats, memory: Floats) -> None:
        """Learn the speeds of an iteration, with the usage at *its* start."""
        ...

    def remap(self, keep: Ints) -> None:
        """Change the members; `keep` has their old positions, -1 for newcomers."""
        ...

    def state(self) -> Arrays:
        """Return the learned state, as arrays to be saved."""
        ...

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Restore a saved state; raises StateFileError, and changes nothing, if it does not fit."""
        ...


@runtime_checkable
class Trainable(Protocol):
    """A predictor whose models are trained off the decision path."""

    def training(self) -> Callable[[], object] | None:
        """Return the work of a training that is due, for any thread, or None.

        The work has its own copies of all data and changes nothing.
        """
        ...

    def adopt(self, result: object) -> None:
        """Use the models of a finished training, from the next prediction on."""
        ...
