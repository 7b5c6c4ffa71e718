"""Turns the losses of samples into this worker's part of the joined batch's gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from evenstep.errors import InvalidSetting

Loss = Callable[..., Any]
"""``loss_fn(params, *batch, **others)``: one loss per sample of the batch."""


class LossWeights:
    """Computes this worker's part of a mean over all samples, from a loss function.

    With `counted`, the loss function returns sums over tokens (or other units) and their number,
    per sample; with `has_aux`, further figures per sample.
    """

    def __init__(self, loss_fn: Loss, has_aux: bool, counted: bool) -> None:
        self._loss_fn = loss_fn
        self._has_aux = has_aux
        self._counted = counted

    def part(
        self, params: Any, batch: Any, others: Any, size: int, samples: Any, total: Any
    ) -> dict[str, Any]:
        """Return this worker's summands of loss, count, figures and gradient.

        Of the `size` samples of the batch the first `samples` count; `total` is X.
        """
        is_sample = jnp.arange(size) < samples

        def summand(what: str, figures: Any) -> Any:
            """Return the sum over the samples without padding, divided by X."""
            shape = jnp.shape(figures)
            if shape[:1] != (size,) or (what != "figure" and len(shape) != 1):
                raise InvalidSetting(_one_each(what, size, shape))
            counts = is_sample.reshape(-1, *[1] * (len(shape) - 1))
            # In float32 at least; padding is left out even where it is NaN.
            figures = jnp.asarray(figures, jnp.promote_types(jnp.result_type(figures), "float32"))
            return jnp.where(counts, figures, 0).sum(axis=0) / total.astype(figures.dtype)

        def own(params: Any) -> tuple[Any, dict[str, Any]]:
            losses = self._loss_fn(params, *batch, **others)
            losses, aux = _pair(losses, "has_aux") if self._has_aux else (losses, ())
            parts = {"aux": jax.tree.map(lambda each: summand("figure", each), aux)}
            if self._counted:
                losses, counts = _pair(losses, "counted")
                parts["count"] = summand("count", counts)
            return summand("loss", losses), parts

        (loss, parts), gradient = jax.value_and_grad(own, has_aux=True)(params)
        return {"loss": loss, "gradient": gradient, **parts}

    def result(self, summed: dict[str, Any]) -> tuple[Any, Any]:
        """Return the result of `jax.value_and_grad` on the joined batch, from the sum of parts."""
        loss, gradient = summed["loss"], summed["gradient"]
        if self._counted:
            count = summed["count"]
            loss = loss / count
            gradient = jax.tree.map(lambda leaf: (leaf / count).astype(leaf.dtype), gradient)
        return ((loss, summed["aux"]) if self._has_aux else loss), gradient


def _pair(returned: Any, setting: str) -> tuple[Any, Any]:
    if not isinstance(returned, tuple) or len(returned) != 2:
        raise InvalidSetting(
            f"the loss function must return a pair with {setting}=True, "
            f"got {type(returned).__name__}"
        )
    return returned


def _one_each(what: str, size: int, shape: tuple[int, ...]) -> str:
    return (
        f"the loss function must return one {what} for each of the {size} samples that it gets, "
        f"so that padding can be left out, got shape {shape}: leave out the mean"
    )
