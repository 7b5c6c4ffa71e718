"""Tiny networks as pure functions of flat parameter vectors, for all workers at once.

The parameters of n workers are one array (worker, parameter), the inputs (worker, sample, input),
the outputs (worker, sample). `jacobian` is derived by hand: networks of some dozen parameters are
trained by least squares (`fitting`), which needs the derivative of every output.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Protocol

import numpy as np

from evenstep.core import Floats, require_whole

Shapes = Sequence[tuple[int, ...]]


class Network(Protocol):
    """A function of its inputs that has one output and differentiable parameters."""

    @property
    def num_parameters(self) -> int: ...

    def init(self, rng: np.random.Generator) -> Floats:
        """Return random parameters to start a training from, (parameter,)."""
        ...

    def output(self, parameters: Floats, inputs: Floats) -> Floats:
        """Return the output of every sample, (worker, sample)."""
        ...

    def jacobian(self, parameters: Floats, inputs: Floats) -> Floats:
        """Return d output / d parameter of every sample, (worker, sample, parameter)."""
        ...


@dataclass(frozen=True)
class FeedForward:
    """One hidden layer: ``y = tanh(x W + b) . a + a_0`` (NARX, Sec. 3.2.2 of the paper)."""

    num_inputs: int = 8
    hidden: int = 8

    def __post_init__(self) -> None:
        _check_hidden(self.hidden)

    @property
    def shapes(self) -> Shapes:
        return [(self.num_inputs, self.hidden), (self.hidden,), (self.hidden,), ()]

    @property
    def num_parameters(self) -> int:
        return _count(self.shapes)

    def init(self, rng: np.random.Generator) -> Floats:
        return _random(self.shapes, rng)

    def output(self, parameters: Floats, inputs: Floats) -> Floats:
        w, b, a, a_0 = _unpack(parameters, self.shapes)
        return _weigh(np.tanh(inputs @ w + b[:, None]), a, a_0)

    def jacobian(self, parameters: Floats, inputs: Floats) -> Floats:
        w, b, a, _ = _unpack(parameters, self.shapes)
        h = np.tanh(inputs @ w + b[:, None])
        delta = a[:, None] * (1 - h**2)
        return _pack([_outer(inputs, delta), delta, h, _ones(inputs)])


@dataclass(frozen=True)
class Elman:
    """A plain recurrent network: ``h_t = tanh(x_t w + h_{t-1} U + b)``, ``y = h_T . a + a_0``.

    The inputs of a sample are its series, oldest value first.
    """

    hidden: int = 4

    def __post_init__(self) -> None:
        _check_hidden(self.hidden)

    @property
    def shapes(self) -> Shapes:
        return [(self.hidden,), (self.hidden, self.hidden), (self.hidden,), (self.hidden,), ()]

    @property
    def num_parameters(self) -> int:
        return _count(self.shapes)

    def init(self, rng: np.random.Generator) -> Floats:
        return _random(self.shapes, rng)

    def output(self, parameters: Floats, inputs: Floats) -> Floats:
        *_, a, a_0 = _unpack(parameters, self.shapes)
        return _weigh(self._run(parameters, inputs)[-1], a, a_0)

    def jacobian(self, parameters: Floats, inputs: Floats) -> Floats:
        w, u, b, a, _ = _unpack(parameters, self.shapes)
        states = self._run(parameters, inputs)
        d_w, d_u, d_b = (np.zeros((*inputs.shape[:2], *part.shape[1:])) for part in (w, u, b))
        d_h = np.broadcast_to(a[:, None], states[0].shape)
        for t in reversed(range(inputs.shape[2])):
            delta = d_h * (1 - states[t + 1] ** 2)
            d_w += inputs[:, :, t, None] * delta
            d_u += _outer(states[t], delta)
            d_b += delta
            d_h = delta @ u.swapaxes(1, 2)
        return _pack([d_w, d_u, d_b, states[-1], _ones(inputs)])

    def _run(self, parameters: Floats, inputs: Floats) -> list[Floats]:
        """Return the hidden states h_0 .. h_T, each (worker, sample, hidden)."""
        w, u, b, *_ = _unpack(parameters, self.shapes)
        states = [np.zeros((*inputs.shape[:2], self.hidden))]
        for t in range(inputs.shape[2]):
            drive = inputs[:, :, t, None] * w[:, None] + b[:, None]
            states.append(np.tanh(drive + states[-1] @ u))
        return states


@dataclass(frozen=True)
class Lstm:
    """A long short-term memory: ``y = h_T . a + a_0`` with

        (i, f, o) = sigmoid(x_t w + h_{t-1} U + b),  g = tanh(likewise),
        s_t = f s_{t-1} + i g,  h_t = o tanh(s_t).

    The inputs of a sample are its series, oldest value first.
    """

    hidden: int = 3

    def __post_init__(self) -> None:
        _check_hidden(self.hidden)

    @property
    def shapes(self) -> Shapes:
        gates = 4 * self.hidden
        return [(gates,), (self.hidden, gates), (gates,), (self.hidden,), ()]

    @property
    def num_parameters(self) -> int:
        return _count(self.shapes)

    def init(self, rng: np.random.Generator) -> Floats:
        return _random(self.shapes, rng)

    def output(self, parameters: Floats, inputs: Floats) -> Floats:
        *_, a, a_0 = _unpack(parameters, self.shapes)
        return _weigh(self._run(parameters, inputs)[-1].h, a, a_0)

    def jacobian(self, parameters: Floats, inputs: Floats) -> Floats:
        w, u, b, a, _ = _unpack(parameters, self.shapes)
        moments = self._run(parameters, inputs)
        d_w, d_u, d_b = (np.zeros((*inputs.shape[:2], *part.shape[1:])) for part in (w, u, b))
        d_h = np.broadcast_to(a[:, None], moments[0].h.shape)
        d_s = np.zeros_like(d_h)
        for t in reversed(range(inputs.shape[2])):
            before, now = moments[t], moments[t + 1]
            bent = np.tanh(now.s)
            d_s = d_s + d_h * now.o * (1 - bent**2)
            delta = np.concatenate(
                [
                    d_s * now.g * now.i * (1 - now.i),
                    d_s * before.s * now.f * (1 - now.f),
                    d_h * bent * now.o * (1 - now.o),
                    d_s * now.i * (1 - now.g**2),
                ],
                axis=2,
            )
            d_w += inputs[:, :, t, None] * delta
            d_u += _outer(before.h, delta)
            d_b += delta
            d_h = delta @ u.swapaxes(1, 2)
            d_s = d_s * now.f
        return _pack([d_w, d_u, d_b, moments[-1].h, _ones(inputs)])

    def _run(self, parameters: Floats, inputs: Floats) -> list[_Moment]:
        """Return the values of the cell at t = 0 .. T."""
        w, u, b, *_ = _unpack(parameters, self.shapes)
        zeros = np.zeros((*inputs.shape[:2], self.hidden))
        moments = [_Moment(zeros, zeros, zeros, zeros, zeros, zeros)]
        for t in range(inputs.shape[2]):
            before = moments[-1]
            drive = inputs[:, :, t, None] * w[:, None] + before.h @ u + b[:, None]
            i, f, o = np.split(_sigmoid(drive[:, :, : 3 * self.hidden]), 3, axis=2)
            g = np.tanh(drive[:, :, 3 * self.hidden :])
            s = f * before.s + i * g
            moments.append(_Moment(i, f, o, g, s, o * np.tanh(s)))
        return moments


@dataclass(frozen=True, eq=False)
class _Moment:
    """The gates i, f, o, the candidate g, the memory s and the state h of one time."""

    i: Floats
    f: Floats
    o: Floats
    g: Floats
    s: Floats
    h: Floats


MOST_HIDDEN = 64
"""Hidden units of a network."""


def _check_hidden(hidden: int) -> None:
    require_whole("hidden units of a network", hidden, most=MOST_HIDDEN)


def _count(shapes: Shapes) -> int:
    return sum(prod(shape) for shape in shapes)


def _random(shapes: Shapes, rng: np.random.Generator) -> Floats:
    """Return random weights and biases, scaled by the inverse root of their layer's size.

    Inputs are logarithms of shares and of relative speeds, a few tenths each; the factor 2 scales
    them to the range in which tanh is not linear.
    """
    return np.concatenate(
        [2 * rng.standard_normal(prod(shape)) / np.sqrt(max(shape, default=1)) for shape in shapes]
    )


def _unpack(parameters: Floats, shapes: Shapes) -> list[Floats]:
    """Return the weights of all workers, layer by layer, each (worker, *shape)."""
    ends = np.cumsum([prod(shape) for shape in shapes])[:-1]
    flat = np.split(parameters, ends, axis=1)
    return [part.reshape(-1, *shape) for part, shape in zip(flat, shapes, strict=True)]


def _pack(parts: Sequence[Floats]) -> Floats:
    """Undo `_unpack` for arrays (worker, sample, *shape)."""
    return np.concatenate([part.reshape(*part.shape[:2], -1) for part in parts], axis=2)


def _weigh(hidden: Floats, a: Floats, a_0: Floats) -> Floats:
    """Return the linear output unit, (worker, sample)."""
    weighed: Floats = (hidden @ a[:, :, None])[:, :, 0] + a_0[:, None]
    return weighed


def _outer(left: Floats, right: Floats) -> Floats:
    product: Floats = left[:, :, :, None] * right[:, :, None, :]
    return product


def _ones(inputs: Floats) -> Floats:
    return np.ones(inputs.shape[:2])


def _sigmoid(x: Floats) -> Floats:
    # This form neither overflows nor needs a case distinction.
    bent: Floats = 0.5 * (1 + np.tanh(0.5 * x))
    return bent
