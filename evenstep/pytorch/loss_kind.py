"""Tells from the graph of a loss whether it is a mean over the worker's samples, or a sum.

Gradients of means are weighed by x_i / X, those of sums by 1 / n. With the wrong one, training goes
wrong without a word, so every loss is looked at before its backward pass. The walk starts at the
root of the autograd graph. It passes sums of terms and scalar factors, and ends on each path below
the reductions that it meets first; the model below is not looked at. Only shapes and scalars are
read. What is saved is read without unpacking it, which could run a checkpointed part again.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import torch

Kind = Literal["mean", "sum", "other"]
_Shape = tuple[int, ...]
_Edge = tuple[Any, int]
"""A node, and which of the outputs of its operator."""

_MOST_NODES, _MOST_TERMS = 1024, 64
"""The walk takes about 4 µs for a node of a penalty on parameters, and 10 µs for a term."""
_MOST_BELOW = 32
"""Nodes that are passed below a reduction, in search of further ones and of factors."""
_MOST_NODES_OF_A_PENALTY = 6
"""In a row, such as those of (W @ W.T - 1)."""
_MOST_WEIGHTS = 2**20
"""Values of a factor that are looked at."""
_OF_TORCH = re.compile(r"(\w+)Backward\d+")
"""Nodes of torch's own operators end with a digit, those of custom functions do not."""
_IDENTITIES = {
    "_DDPSinkBackward",
    "BackwardHookFunctionBackward",
    "RegisterPreBackwardFunctionBackward",
}
"""What DDP, hooks of modules and FSDP2 put on top of the outputs of a model."""
_LINEAR = re.compile(
    "Add|Alias|Clone|Copy|Div|MaskedFill|Mul|Neg|Permute|Reshape|ReshapeAlias|Rsub|Squeeze|Sub|T|"
    "ToCopy|Transpose|UnsafeView|Unsqueeze|View|Where"
)
_NONLINEAR = re.compile(
    "Abs|Clamp|ClampMax|ClampMin|Cos|Elu|Erf|Exp|Expm1|Gelu|Hardtanh|LeakyRelu|Log|Log1P|LogSigmoid|"
    "Maximum|Minimum|NanToNum|Pow|Reciprocal|Relu|Rsqrt|Sigmoid|Silu|Sin|Softplus|Sqrt|Tanh|Xlogy"
)
_ELEMENTWISE = re.compile(f"{_LINEAR.pattern}|{_NONLINEAR.pattern}")
"""Operators on each value alone, and those that change the shape only."""
_REDUCTIONS = {
    "Mean": "mean",
    "Sum": "sum",
    "Nansum": "sum",
    "LinalgVectorNorm": "norm",
    "Norm": "norm",
}
_OF_PENALTIES = {"Mm", "Bmm", "Matmul", "Mv", "Dot", "Select", "Slice"}


@dataclass(frozen=True)
class Verdict:
    """What kind of loss it is, and why."""

    kind: Kind | None
    """"mean": over the samples, or a fixed number of items of each, times any factor. "sum": over
    them, times a factor that does not depend on their number. "other": neither, such as a mean over
    the tokens that count. None: unknown."""
    reason: str
    """For a message: what the verdict follows from."""
    count: float | None = None
    """The number that the loss is divided by, such as tokens or the sum of class weights, if it may
    depend on the batch. A sum over a number that stays the same at another size is certain."""
    is_certain: bool = True
    """Whether it holds for other batches of this script. A sum over a number that is a multiple of
    the samples, for example, is a mean, unless that is by chance: ask again at another size."""


def kind_of(loss: torch.Tensor, samples: int) -> Kind | None:
    """Return the kind of a loss that was computed from this number of samples.

    >>> scores = torch.nn.Linear(3, 2)(torch.zeros(8, 3))
    >>> kind_of(scores.square().mean(), 8), kind_of(scores.square().sum(), 8)
    ('mean', 'sum')
    """
    return verdict_of(loss, samples).kind


def verdict_of(loss: torch.Tensor, samples: int) -> Verdict:
    """Return the kind of a loss with its reason; it never raises.

    On an accelerator the host may wait for scalars, such as the number of targets that count.
    """
    if loss.numel() != 1 or loss.grad_fn is None or samples < 1:
        return Verdict(None, "only a loss of one number that has a graph can be judged")
    try:
        terms = _Walk(samples).terms((loss.grad_fn, loss.output_nr), _Path())
    except Exception as error:
        # Nodes of other versions of torch may save other values.
        return Verdict(None, f"its graph cannot be read: {error!r}")
    return _agreed(terms)


class _Factor(NamedTuple):
    """A number or a tensor of one value by which a path is multiplied or divided."""

    value: Any
    divides: bool

    @property
    def is_number(self) -> bool:
        """Whether the script gave a number and not a tensor."""
        if isinstance(self.value, int | float):
            return True
        if not isinstance(self.value, torch.Tensor) or self.value.dim() > 0:
            return False
        # torch makes tensors of numbers, and marks them: they do not widen the type of others.
        narrow = torch.float16 if self.value.is_floating_point() else torch.int32
        return torch.result_type(torch.zeros((), dtype=narrow), self.value) == narrow

    def read(self) -> float:
        """Return the value; a DTensor, say, is not read, as that could be a collective call."""
        if type(self.value) in (torch.Tensor, torch.nn.Parameter):
            return float(self.value.detach())
        if not isinstance(self.value, int | float):
            raise TypeError(f"cannot read a {type(self.value).__name__}")
        return float(self.value)


class _Reduction(NamedTuple):
    """A mean, sum or norm over dimensions of a tensor."""

    op: str
    shape: _Shape
    dims: Sequence[int]
    is_linear: bool
    """Whether the loss is a linear function of the result."""
    is_loss: bool = False
    """Whether it is part of one of torch's losses."""
    counted: _Factor | None = None
    """How many targets count, or the sum of their weights."""
    is_weighted: bool = False

    @property
    def size(self) -> int:
        return math.prod(self.shape)


class _Path(NamedTuple):
    """What lies between the root and a node."""

    reductions: tuple[_Reduction, ...] = ()
    factors: tuple[_Factor, ...] = ()
    is_linear: bool = True
    num_below: int = 0
    """Nodes below the last reduction."""

    @property
    def is_zero(self) -> bool:
        """Whether a factor is 0, as in a loss that stands for none."""
        return any(f.is_number and not f.divides and f.read() == 0 for f in self.factors)

    def reduced(self, reduction: _Reduction) -> _Path:
        linear = self.is_linear and reduction.op != "norm"
        return _Path((*self.reductions, reduction), self.factors, linear)

    def times(self, value: Any, divides: bool = False) -> _Path:
        if not self.is_linear:
            return self
        return self._replace(factors=(*self.factors, _Factor(value, divides)))


class _Walk:
    """Walks the graph of one loss, and judges each of its terms."""

    def __init__(self, samples: int) -> None:
        self._samples = samples
        self._nodes_left = _MOST_NODES

    def terms(self, root: _Edge, path: _Path) -> list[Verdict]:
        """Return the verdicts of all terms that depend on samples."""
        found: list[Verdict] = []
        pending = [(root, path)]
        while pending:
            self._nodes_left -= 1
            if self._nodes_left < 0 or len(found) > _MOST_TERMS:
                raise ValueError(f"more than {_MOST_NODES} nodes or {_MOST_TERMS} terms")
            (node, output), path = pending.pop()
            op = _op_of(node)
            edges, path = _pass(node, output, op, path)
            if op in ("Mul", "Div") and len(edges) == 2 and not _shape_of(node, output):
                found += self._product_terms(edges, path)
            elif edges and path.num_below < _MOST_BELOW:
                if path.reductions:
                    path = path._replace(num_below=path.num_below + 1)
                # Factors do not count below operators that are not linear, and all operands have
                # the same shape, so that one is enough.
                pending += [(edge, path) for edge in edges[: None if path.is_linear else 1]]
            else:
                found += self._end(node, output, op, path)
        return found

    def _end(self, node: Any, output: int, op: str, path: _Path) -> list[Verdict]:
        """Judge a path at a node that is not passed."""
        if path.is_zero or _depends_on_parameters_only(node, _MOST_NODES_OF_A_PENALTY):
            return []
        if hasattr(node, "_saved_reduction"):
            return self._loss_terms(node, op, path)
        return [self._judge(path, op, self._is_filter(node, output))]

    def _product_terms(self, edges: list[_Edge], path: _Path) -> list[Verdict]:
        """Judge a product or quotient of two scalars that both have a graph."""
        sides = [self.terms(edge, path) for edge in edges]
        if all(sides):
            return [
                Verdict("other", "it is a product or quotient of values that depend on samples")
            ]
        return sides[0] or sides[1]

    def _loss_terms(self, node: Any, op: str, path: _Path) -> list[Verdict]:
        """Judge one of torch's losses."""
        edge = _edges_of(node)[0]
        if _depends_on_parameters_only(edge[0], _MOST_NODES_OF_A_PENALTY):
            return []
        reduction = ("none", "mean", "sum")[node._saved_reduction]
        if reduction == "none":
            return [self._judge(path, op)]
        shape = _shape_of(*edge)
        counted, weighted = None, False
        if op.startswith("NllLoss"):
            shape = shape[:1] + shape[2:] if len(shape) > 1 else (1,)
            counted = _Factor(_saved(node, "total_weight"), divides=True)
            weighted = _saved(node, "weight") is not None
        found = _Reduction(
            reduction, shape, range(len(shape)), path.is_linear, True, counted, weighted
        )
        below = edge
        while _op_of(below[0]) in ("LogSoftmax", "ToCopy", "View", "UnsafeView"):
            below = below[0].next_functions[0]
        return [self._judge(path.reduced(found), op, self._is_filter(*below))]

    def _is_filter(self, node: Any, output: int) -> bool:
        """Tell whether a node keeps some of the values by an index, and not one of each row."""
        if _op_of(node) not in ("Index", "MaskedSelect"):
            return False
        shape, before = _shape_of(node, output), _shape_of(*node.next_functions[0])
        is_whole = math.prod(shape) == math.prod(before)
        return not is_whole and shape[:1] not in (before[:1], (self._samples,))

    def _judge(self, path: _Path, end: str, is_filter: bool = False) -> Verdict:
        """Judge a path by the reduction that removes the dimension of the samples."""
        if not path.reductions:
            return Verdict(None, f"{end} is not known as a mean or a sum")
        lowest = path.reductions[-1]
        deciding = _deciding(path.reductions, self._samples)
        if not deciding and all(reduction.op == "sum" for reduction in path.reductions):
            deciding = [lowest]
        elif not deciding and lowest.op == "mean" and (lowest.is_loss or is_filter):
            return self._judge_part(lowest, is_filter)
        verdicts = [self._verdict(reduction, path, is_filter) for reduction in deciding]
        if len({verdict.kind for verdict in verdicts}) == 1:
            return verdicts[0]
        if lowest.shape[:1] == (self._samples,):
            # Another dimension has the same size, and samples usually come first.
            return replace(verdicts[0], is_certain=False)
        return Verdict(None, f"{_text(lowest)} has no dimension that is surely that of the samples")

    def _judge_part(self, reduction: _Reduction, is_filter: bool) -> Verdict:
        """Judge a mean over a number of items that is no multiple of the samples."""
        verdict = _judge_targets(reduction, self._samples)
        if not reduction.is_linear or (reduction.size < self._samples and not is_filter):
            text = f"{_text(reduction)} may be one of several parts of {self._samples} samples"
            return Verdict(None, text)
        is_mean = verdict.kind == "mean"
        return _mean_over(reduction, reduction.size, self._samples) if is_mean else verdict

    def _verdict(self, reduction: _Reduction, path: _Path, is_filter: bool) -> Verdict:
        """Judge a reduction over samples."""
        if not reduction.is_linear or reduction.op == "norm":
            return Verdict("other", f"it is no linear function of {_text(reduction)}")
        if reduction.op == "sum":
            return self._judge_sum(reduction, path)
        verdict = _judge_targets(reduction, self._samples)
        # That as many are kept of each sample may be by chance.
        is_mean = verdict.kind == "mean"
        return replace(verdict, is_certain=False) if is_filter and is_mean else verdict

    def _judge_sum(self, reduction: _Reduction, path: _Path) -> Verdict:
        """Judge a sum over samples by its factors."""
        sizes = {r.size for r in path.reductions if r.op == "sum"}
        verdicts = [
            _judge_factor(factor, reduction, sizes | {self._samples}, self._samples)
            for factor in path.factors
        ]
        for kind in ("mean", "other", None, "sum"):
            for verdict in verdicts:
                if verdict is not None and verdict.kind == kind:
                    return verdict
        return Verdict("sum", f"it is {_text(reduction)}, which is not divided by their number")


def _judge_factor(
    factor: _Factor, reduction: _Reduction, sizes: set[int], samples: int
) -> Verdict | None:
    """Return what a factor makes of a sum; None if it stays a sum."""
    if isinstance(factor.value, torch.Tensor) and factor.value.numel() > 1:
        return _judge_weights(factor, reduction, samples)
    try:
        value = abs(factor.read())
    except (TypeError, ValueError, RuntimeError):
        unknown = Verdict(None, f"a divisor of {_text(reduction)} cannot be read")
        return unknown if factor.divides else None
    if not math.isfinite(value) or value == 0:
        return None
    divisor = value if factor.divides else 1 / value
    text = f"it is {_text(reduction)}, divided by {divisor:g}"
    mean = Verdict("mean", text, divisor, is_certain=False)
    if factor.divides and not factor.is_number:
        return _judge_divisor_tensor(divisor, reduction, sizes, mean)
    if _is_one_of(divisor, sizes):
        return mean
    if not (factor.divides and divisor.is_integer()):
        return None
    if divisor % samples == 0:
        return mean if samples > 1 else replace(mean, kind=None)
    # A number of tokens that the script has read, or a constant.
    return replace(mean, kind="sum") if 1 <= divisor < max(sizes) else None


def _judge_weights(factor: _Factor, reduction: _Reduction, samples: int) -> Verdict | None:
    """Return what a factor for each value makes of a sum; None if it stays a sum.

    With masks and other whole numbers it does, and with weights that add up to 1 for each sample,
    such as soft labels. Others may hold the number of samples.
    """
    weights = factor.value.detach()
    if type(weights) is not torch.Tensor or weights.numel() > _MOST_WEIGHTS:
        return None
    text = f"it is {_text(reduction)}, of which each has a weight"
    if not weights.is_floating_point() or bool((weights == weights.round()).all()):
        hides = factor.divides and samples > 1 and not bool((weights % samples).any())
        return Verdict(None, f"{text} that may hold their number") if hides else None
    summed = float(weights.sum(dtype=torch.float64)) * reduction.size / weights.numel()
    if math.isclose(summed, 1, rel_tol=1e-4) and not factor.divides:
        is_even = samples == 1 or bool((weights == weights.flatten()[0]).all())
        return Verdict("mean" if is_even else "other", f"{text}, 1 in sum", is_certain=not is_even)
    if math.isclose(summed, samples, rel_tol=1e-4) and not factor.divides:
        return None
    return Verdict(None, f"{text} that may hold their number")


def _judge_divisor_tensor(
    divisor: float, reduction: _Reduction, sizes: set[int], mean: Verdict
) -> Verdict | None:
    """Judge a sum over a tensor: a count of its own items, of those that a mask keeps, or of all.

    A count that covers all workers is larger than the number of items here, and leaves a sum.
    """
    other = replace(mean, kind="other", count=divisor, is_certain=True)
    if reduction.counted is not None:
        counted = reduction.counted.read()
        if divisor == counted != reduction.size:
            return other
        return mean if _is_one_of(divisor, sizes) else None
    if _is_one_of(divisor, sizes):
        return mean
    return other if divisor.is_integer() and 1 < divisor < max(sizes) else None


def _judge_targets(reduction: _Reduction, samples: int) -> Verdict:
    """Judge a mean over items, some of which may be ignored or weigh more than others."""
    mean = Verdict("mean", f"it is {_text(reduction)}")
    if reduction.counted is None:
        return mean
    try:
        total = reduction.counted.read()
    except (TypeError, ValueError, RuntimeError):
        # Packed by a hook, to be kept elsewhere.
        return replace(mean, is_certain=False)
    if reduction.is_weighted:
        return Verdict("other", "it is a mean over targets, by the weights of classes", total)
    rounding = torch.finfo(reduction.counted.value.dtype).eps * reduction.size
    if abs(total - reduction.size) <= rounding:
        return mean
    if total > 0 and total % samples == 0:
        # As many of each sample may be ignored, such as the last token; or it is by chance.
        return replace(mean, is_certain=False)
    return _mean_over(reduction, total, samples)


def _mean_over(reduction: _Reduction, count: float, samples: int) -> Verdict:
    text = f"it is a mean over {count:g} items, of {samples} samples"
    if reduction.size != count:
        text += f" with {reduction.size} items"
    return Verdict("other", text, count)


def _agreed(terms: list[Verdict]) -> Verdict:
    """Return the verdict of a sum of terms."""
    if not terms:
        return Verdict("mean", "it does not depend on samples")
    for kind in ("other", None):
        for term in terms:
            if term.kind == kind:
                return term
    if len({term.kind for term in terms}) > 1:
        first, second = (next(t for t in terms if t.kind == kind) for kind in ("mean", "sum"))
        text = f"its terms differ: {first.reason}; and {second.reason}"
        return Verdict("other", text, is_certain=first.is_certain and second.is_certain)
    return min(terms, key=lambda term: term.is_certain)


def _deciding(reductions: Sequence[_Reduction], samples: int) -> list[_Reduction]:
    """Return the reductions that may be the one over samples: one if shapes leave no doubt."""
    lowest = reductions[-1]
    found: list[_Reduction] = []
    for position in _sample_dims(lowest.shape, samples):
        if position in lowest.dims:
            found.append(lowest)
        elif len(reductions) > 1:
            found.extend(_deciding(reductions[:-1], samples))
    return found


def _sample_dims(shape: _Shape, samples: int) -> list[int]:
    """Return the dimensions that may be that of the samples, or of a fixed number per sample."""
    flattened = [0] if shape and shape[0] > 0 and shape[0] % samples == 0 else []
    return flattened + [dim for dim in range(1, len(shape)) if shape[dim] == samples]


def _reduction_of(node: Any, op: str, edge: _Edge, is_linear: bool) -> _Reduction:
    shape = _shape_of(*edge)
    dims = getattr(node, "_saved_dim", None)
    if dims is None or dims == ():
        return _Reduction(op, shape, range(len(shape)), is_linear)
    # Negative dimensions are saved as unsigned numbers of 64 bits.
    signed = [dim - 2**64 if dim >= 2**63 else dim for dim in dims]
    return _Reduction(op, shape, [dim % max(len(shape), 1) for dim in signed], is_linear)


def _pass(node: Any, output: int, op: str, path: _Path) -> tuple[list[_Edge], _Path]:
    """Return the ways on below a node, and the path to them; none if the path ends there."""
    edges = _edges_of(node)
    if op in _IDENTITIES:
        return [node.next_functions[output]], path
    if op in _REDUCTIONS:
        return edges, path.reduced(_reduction_of(node, _REDUCTIONS[op], edges[0], path.is_linear))
    if op in ("Stack", "Cat"):
        return (edges if all(_size(edge) == 1 for edge in edges) else []), path
    if not _ELEMENTWISE.fullmatch(op):
        return [], path
    # Operands that are broadcast do not hold the samples.
    size = _size((node, output))
    edges = [edge for edge in edges if _size(edge) == size]
    return edges, _path_through(node, op, edges, path)


def _path_through(node: Any, op: str, edges: list[_Edge], path: _Path) -> _Path:
    """Return the path through an operator on each value alone."""
    if _LINEAR.fullmatch(op) is None:
        return path._replace(is_linear=False)
    if op not in ("Mul", "Div") or not edges:
        return path
    is_first = node.next_functions[0] == edges[0]
    if len(edges) == 2 or (op == "Div" and not is_first):
        is_scalar = not _shape_of(node, 0)
        return path if is_scalar and len(edges) == 2 else path._replace(is_linear=False)
    other = _saved(node, "other" if is_first else "self")
    return path.times(other, divides=op == "Div")


def _depends_on_parameters_only(node: Any, most: int) -> bool:
    """Tell whether at most `most` nodes in a row lead to parameters, and to nothing else."""
    if node is None or most == 0:
        return False
    if isinstance(getattr(node, "variable", None), torch.nn.Parameter):
        return True
    op = _op_of(node)
    passes = op in _OF_PENALTIES or _ELEMENTWISE.fullmatch(op) or op in _REDUCTIONS
    edges = node.next_functions
    return bool(passes and edges) and all(
        _depends_on_parameters_only(edge[0], most - 1) for edge in edges
    )


def _op_of(node: Any) -> str:
    """Return the name of one of torch's operators, or the whole name of another node."""
    name: str = node.name()
    match = _OF_TORCH.fullmatch(name)
    return match[1] if match else name


def _is_one_of(value: float, sizes: Iterable[int]) -> bool:
    return any(math.isclose(value, size, rel_tol=1e-6) for size in sizes)


def _edges_of(node: Any) -> list[_Edge]:
    return [edge for edge in node.next_functions if edge[0] is not None]


def _size(edge: _Edge) -> int:
    return math.prod(_shape_of(*edge))


def _shape_of(node: Any, output: int) -> _Shape:
    return tuple(node._input_metadata[output].shape)


def _saved(node: Any, name: str) -> Any:
    """Return a saved value as it is kept, which is no tensor if a hook has packed it."""
    raw: Any = getattr(node, f"_raw_saved_{name}", None)
    return raw.data if hasattr(raw, "data") else getattr(node, f"_saved_{name}")


def _text(reduction: _Reduction) -> str:
    return f"a {reduction.op} over {' x '.join(map(str, reduction.shape)) or 1} values"
