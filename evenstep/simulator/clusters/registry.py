"""Clusters by name: the paper's clusters, the scenarios and cluster files, in one short form.

Every command that runs on a cluster takes this form.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from pathlib import Path

from evenstep.core.short_form import construct, parse_spec
from evenstep.errors import InvalidSetting
from evenstep.simulator.clusters.cluster import Cluster
from evenstep.simulator.clusters.cluster_a import MODELS, ClusterA
from evenstep.simulator.clusters.cluster_b import ClusterB
from evenstep.simulator.clusters.file import load_cluster
from evenstep.simulator.clusters.scenarios import SCENARIOS, make_scenario

CLUSTERS: dict[str, Callable[..., ClusterA | ClusterB]] = {"A": ClusterA, "B": ClusterB}
"""The paper's clusters."""

SUMMARIES = {
    "A": "the paper's Cluster-A, GPUs of four kinds (A:4 and A:12: fewer workers)",
    "B": "the paper's Cluster-B, CPUs under a Google trace (B:tasks: another hour)",
    **{name: scenario.summary for name, scenario in SCENARIOS.items()},
}
"""One line for each name."""


def make_cluster(
    spec: str,
    num_workers: int | None = None,
    iterations: int | None = None,
    seed: int = 0,
    noisy: bool = True,
    model: str | None = None,
) -> Cluster:
    """Make a cluster from its short form, or load a cluster file.

    The settings of Cluster-A and Cluster-B follow a colon; the first one needs no name. `model`
    is the model that is trained: Cluster-A uses its times if it has them and the short form names
    no other.

    >>> make_cluster("A:12,model=resnet32").num_workers
    12
    >>> make_cluster("B:tasks,backups=2").name
    'Cluster-B, tasks'
    >>> make_cluster("G", num_workers=8).num_workers
    8
    """
    if iterations is not None and iterations < 1:
        raise InvalidSetting(f"the number of iterations must be >= 1, got {iterations}")
    name, colon, settings = spec.partition(":")
    if name in CLUSTERS:
        return _papers(name, settings, num_workers, model).make(iterations, seed, noisy)
    if name in SCENARIOS and not colon:
        return make_scenario(name, num_workers, iterations, seed, noisy)
    if not _is_file(spec):
        raise InvalidSetting(
            f"cluster must be one of {', '.join(SUMMARIES)}, or a cluster file, got {spec!r}"
        )
    if num_workers is not None:
        raise InvalidSetting(
            f"a number of workers goes with a scenario; {spec} has its own workers"
        )
    return load_cluster(spec, seed, iterations, noisy)


def is_cluster(spec: str) -> bool:
    """Whether a text is the short form of a cluster, or the name of a cluster file.

    >>> is_cluster("A:4"), is_cluster("my-cluster.toml"), is_cluster("run.jsonl")
    (True, True, False)
    """
    name, colon, _ = spec.partition(":")
    return name in CLUSTERS or (name in SCENARIOS and not colon) or spec.endswith(".toml")


def _papers(
    name: str, settings: str, num_workers: int | None, model: str | None
) -> ClusterA | ClusterB:
    first, *_ = signature(CLUSTERS[name]).parameters
    if settings and "=" not in settings.partition(",")[0]:
        settings = f"{first}={settings}"
    _, given = parse_spec(f"{name}:{settings}" if settings else name)
    if num_workers is not None:
        if first != "workers":
            raise InvalidSetting(f"{name} has its own number of workers, got {num_workers}")
        if given.setdefault(first, num_workers) != num_workers:
            raise InvalidSetting(
                f"the number of workers must be given once, got {given[first]} and {num_workers}"
            )
    if name == "A" and model in MODELS:
        given.setdefault("model", model)
    return construct(CLUSTERS[name], name, given)


def _is_file(spec: str) -> bool:
    return spec.endswith(".toml") or Path(spec).is_file()
