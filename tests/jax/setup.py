"""A small net with its data, and loops around it, for the tests of the JAX adapter."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from evenstep.jax import Balancer
from evenstep.training.epochs import Epochs
from tests.training.sequences import Played

FEATURES = 5
WIDTH = 7


def data(num_samples: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(num_samples, FEATURES)).astype(np.float32)
    return inputs, np.sin(inputs.sum(axis=1))


def net() -> dict[str, Any]:
    first, second = jax.random.split(jax.random.key(1))
    return {
        "hidden": jax.random.normal(first, (FEATURES, WIDTH)) / 2,
        "bias": jnp.zeros(WIDTH),
        "out": jax.random.normal(second, (WIDTH,)) / 2,
    }


def losses(params: Any, inputs: Any, targets: Any) -> Any:
    """Return the loss of each sample."""
    hidden = jnp.tanh(inputs @ params["hidden"] + params["bias"])
    return (hidden @ params["out"] - targets) ** 2


@contextmanager
def balanced(total: int, **settings: Any) -> Iterator[Balancer]:
    balancer = Balancer(total, summary=False, **settings)
    try:
        yield balancer
    finally:
        balancer.close()


def cycle(*plans: tuple[int, ...], times: int = 50) -> Played:
    """Return a policy that plays these plans again and again."""
    return Played(plans * times)


def joined_batches(num_samples: int, total: int, num_iterations: int) -> Iterator[Any]:
    """Yield the samples of all workers together, as one process would have them."""
    samples, epochs = data(num_samples), Epochs(num_samples, total)
    for _ in range(num_iterations):
        dealt = epochs.deal(np.array([total]), 0)
        assert dealt is not None
        yield tuple(array[dealt.samples] for array in samples)
        epochs.advance()
        if epochs.position == len(epochs):
            epochs.end()


def arrays_of(tree: Any) -> list[NDArray[Any]]:
    """Return the arrays of a tree in a form that travels."""
    return [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]
