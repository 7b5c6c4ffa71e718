"""Workloads by name, in the short form used on command lines.

>>> make_workload("svm:seed=1").name
'svm-synthetic'
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import nn

from evenstep.core.short_form import construct, parse_spec, require_whole
from evenstep.errors import InvalidSetting
from evenstep.simulator.workloads.classification import Classification
from evenstep.simulator.workloads.digits import mlp_digits, softmax_digits
from evenstep.simulator.workloads.nets import (
    NORMS,
    Standardise,
    cifarnet,
    resnet32,
    small_inception,
)
from evenstep.simulator.workloads.pictures import load_pictures
from evenstep.simulator.workloads.svm import LinearSvm, linear_svm
from evenstep.simulator.workloads.workload import Workload

__all__ = ["DTYPES", "WORKLOADS", "make_workload"]

T = TypeVar("T")

DTYPES = {"float32": torch.float32, "float64": torch.float64}


def make_workload(spec: str, path: str | None = None) -> Workload:
    """Make a workload from its short form: ``name[:setting=value,...]``.

    A `path` given as an argument may contain commas.
    """
    name, settings = parse_spec(spec)
    if name not in WORKLOADS:
        raise InvalidSetting(f"workload must be one of {', '.join(WORKLOADS)}, got {name!r}")
    if path is not None and settings.setdefault("path", path) != path:
        raise InvalidSetting(f"path of {name} must be given once, got {path!r} too")
    return construct(WORKLOADS[name], name, settings)


def _softmax(dtype: str = "float32") -> Classification:
    return softmax_digits(_dtype(dtype))


def _mlp(width: int = 64, dtype: str = "float32") -> Classification:
    require_whole("width of mlp", width)
    return mlp_digits(_dtype(dtype), width)


def _svm(
    path: str = "",
    test: str = "",
    rows: int | None = None,
    l2: float = 1e-4,
    seed: int = 0,
    dtype: str = "float32",
) -> LinearSvm:
    if rows is not None:
        require_whole("rows of svm", rows)
    require_whole("seed of svm", seed, least=0)
    return linear_svm(str(path), str(test), rows, l2, seed, _dtype(dtype))


def _cifarnet(path: str = "", dtype: str = "float32") -> Classification:
    return _on_pictures("cifarnet", cifarnet, path, dtype)


def _resnet32(
    path: str = "", norm: str = "batch", blocks: int = 5, dtype: str = "float32"
) -> Classification:
    make_norm = _one_of("norm", NORMS, norm)
    require_whole("blocks of resnet32", blocks)
    name = "resnet32" if blocks == 5 else f"resnet32 (gradients of resnet{6 * blocks + 2})"
    return _on_pictures(name, lambda: resnet32(make_norm, blocks), path, dtype)


def _inception_v3(path: str = "", norm: str = "batch", dtype: str = "float32") -> Classification:
    # Cluster-A has the measured times; a net of that size would take minutes for one gradient.
    make_norm = _one_of("norm", NORMS, norm)
    name = "inception_v3 (gradients of small_inception)"
    return _on_pictures(name, lambda: small_inception(make_norm), path, dtype)


WORKLOADS: dict[str, Callable[..., Workload]] = {
    "softmax": _softmax,
    "mlp": _mlp,
    "svm": _svm,
    "cifarnet": _cifarnet,
    "resnet32": _resnet32,
    "inception_v3": _inception_v3,
}


def _on_pictures(
    name: str, make_net: Callable[[], nn.Module], path: str, dtype: str
) -> Classification:
    pictures = load_pictures(str(path))

    def make() -> nn.Module:
        return nn.Sequential(Standardise(pictures.mean, pictures.deviation), make_net())

    return Classification(
        f"{name} on {pictures.name}", make, pictures.train, pictures.test, _dtype(dtype)
    )


def _dtype(name: str) -> torch.dtype:
    return _one_of("dtype", DTYPES, name)


def _one_of(what: str, known: dict[str, T], name: str) -> T:
    if name not in known:
        raise InvalidSetting(f"{what} must be one of {', '.join(known)}, got {name!r}")
    return known[name]
