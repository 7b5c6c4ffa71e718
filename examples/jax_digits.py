"""Train a small convolutional net on pictures of digits with JAX and optax, on two processes.

Start it in two terminals, or with & in one; PROCESS is 0 or 1:

    python examples/jax_digits.py 127.0.0.1:7500 2 PROCESS

The pictures are drawn here: seven-segment digits, shifted, of varying strength, and noisy.
"""

import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from evenstep.jax import Balancer

EPOCHS = 3
SEGMENTS = ["abcdef", "bc", "abged", "abgcd", "fgbc", "afgcd", "afgedc", "abc", "abcdefg", "abcdfg"]
STROKES = {
    "a": np.s_[0, 0:4], "b": np.s_[0:4, 3], "c": np.s_[3:7, 3], "d": np.s_[6, 0:4],
    "e": np.s_[3:7, 0], "f": np.s_[0:4, 0], "g": np.s_[3, 0:4],
}  # fmt: skip


def draw(count: int, seed: int) -> tuple[Any, Any]:
    """Return pictures of 10 x 8 pixels, and the digits on them."""
    rng = np.random.default_rng(seed)
    digits = rng.integers(0, 10, count)
    pictures = rng.normal(0, 0.2, (count, 10, 8, 1)).astype(np.float32)
    for picture, digit in zip(pictures, digits, strict=True):
        down, right = rng.integers(0, 4), rng.integers(0, 5)
        for segment in SEGMENTS[digit]:
            picture[down : down + 7, right : right + 4, 0][STROKES[segment]] += rng.uniform(0.7, 1)
    return pictures, digits.astype(np.int32)


def make_net(key: Any) -> list[dict[str, Any]]:
    """Return the parameters; the same on all workers, as the key is."""
    keys = jax.random.split(key, 3)
    shapes = [(3, 3, 1, 16), (3, 3, 16, 32), (5 * 4 * 32, 10)]
    return [
        {
            "weights": jax.random.normal(key, shape) / np.sqrt(np.prod(shape[:-1])),
            "bias": jnp.zeros(shape[-1]),
        }
        for key, shape in zip(keys, shapes, strict=True)
    ]


def scores(params: Any, pictures: Any) -> Any:
    """Return the scores of all ten digits, for each picture."""
    x, axes = pictures, ("NHWC", "HWIO", "NHWC")
    for layer, stride in zip(params[:2], (1, 2), strict=True):
        x = jax.lax.conv_general_dilated(
            x, layer["weights"], (stride, stride), "SAME", dimension_numbers=axes
        )
        x = jax.nn.relu(x + layer["bias"])
    return x.reshape(len(x), -1) @ params[2]["weights"] + params[2]["bias"]


def losses(params: Any, pictures: Any, digits: Any) -> Any:
    """Return one loss per sample: the mean is taken over all workers' samples."""
    found = scores(params, pictures)
    return optax.softmax_cross_entropy_with_integer_labels(found, digits), {
        "accuracy": found.argmax(axis=1) == digits
    }


def main() -> None:
    address, num_processes, process = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    jax.distributed.initialize(address, num_processes, process)

    params = make_net(jax.random.key(0))
    optimizer = optax.adam(3e-3)
    state = optimizer.init(params)
    balancer = Balancer(total=64, bucket=8)
    loader = balancer.loader(draw(2048, seed=1))
    value_and_grad = balancer.value_and_grad(losses, has_aux=True)

    @jax.jit  # type: ignore[untyped-decorator, unused-ignore]
    def step(params: Any, state: Any, gradient: Any) -> tuple[Any, Any]:
        updates, state = optimizer.update(gradient, state, params)
        return optax.apply_updates(params, updates), state

    for epoch in range(EPOCHS):
        seen = []
        for pictures, digits in loader:
            (loss, figures), gradient = value_and_grad(params, pictures, digits)
            params, state = step(params, state, gradient)
            seen.append([loss, figures["accuracy"]])
        if process == 0:
            loss, accuracy = np.mean(seen, axis=0)
            sizes = "/".join(map(str, balancer.plan.sizes))
            print(f"epoch {epoch}: loss {loss:.3f}, accuracy {accuracy:.1%}, sizes {sizes}")

    if process == 0:
        pictures, digits = draw(512, seed=2)
        accuracy = (scores(params, pictures).argmax(axis=1) == digits).mean()
        print(f"accuracy {accuracy:.1%} after {EPOCHS} epochs")
        print(f"programs {value_and_grad.num_programs}, bucket {balancer.bucket}")


if __name__ == "__main__":
    main()
