"""Claims about iteration times on Cluster-B, with reasons where they do not hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from evenstep.simulator.clusters.cluster import Cluster
from evenstep.simulator.clusters.cluster_b import HOUR, LEVEL, ClusterB
from evenstep.simulator.schemes import FlexRR
from reproduction.real_load_run import BSP
from reproduction.result import Claim

BACKUP, SSP, FLEXRR = "backup", "ssp", "flexrr"
SEQUENTIAL = "sequential-bsp"
TITLES = {"svm": "the SVM", "resnet32": "ResNet-32"}
NOT_KNOWN = "why is not known"
_MARGINAL = 0.2
"""Share of BSP's time: smaller savings are marginal."""


@dataclass(frozen=True)
class Ratios:
    """Times per update over BSP's, FlexRR's over sequential BSP's."""

    of: Mapping[str, Mapping[str, float]]
    """Model, scheme: the ratio."""
    narx: str
    """The label of LB-BSP with NARX."""
    overheads: Mapping[float, float]
    """What is assumed of FlexRR's monitoring, and moving, as shares: its ratio with ResNet-32."""

    def ahead(self, ours: str, others: Sequence[str]) -> list[str]:
        """Return where another scheme is not slower than ours, in words."""
        return [
            f"{other} with {TITLES[model]} ({ratios[other]:.3f}, against {ratios[ours]:.3f})"
            for model, ratios in self.of.items()
            for other in others
            if ratios[other] <= ratios[ours]
        ]

    def beyond(self, scheme: str) -> list[str]:
        """Return with which models a scheme saves much, or nothing at all, in words."""
        return [
            f"{ratios[scheme]:.3f} of BSP's time with {TITLES[model]}"
            for model, ratios in self.of.items()
            if not 1 - _MARGINAL < ratios[scheme] <= 1
        ]

    @property
    def crossing(self) -> float | None:
        """The overhead with which FlexRR is as fast as LB-BSP with NARX, if there is one."""
        balanced = self.of["resnet32"][self.narx]
        for (low, before), (high, after) in pairwise(self.overheads.items()):
            if before < balanced <= after:
                return float(np.interp(balanced, [before, after], [low, high]))
        return None


def claims_on_b(ratios: Ratios) -> list[Claim]:
    """Return the claims of the paper, and ours, about these ratios."""
    return [
        _beats(ratios),
        _marginal(ratios, "ssp_marginal", "SSP", SSP, lambda: NOT_KNOWN),
        _marginal(ratios, "backup_marginal", "Redundant execution", BACKUP, _slowest_workers),
        _beats_flexrr(ratios),
        _overhead_decides(ratios),
    ]


def _beats(ratios: Ratios) -> Claim:
    ahead = ratios.ahead(ratios.narx, [BACKUP, SSP])
    return Claim(
        "beats_backup_and_ssp",
        "LB-BSP is faster per iteration than redundant execution and SSP, for both models.",
        not ahead,
        why=f"at least as fast: {', '.join(ahead)}; {NOT_KNOWN}",
    )


def _marginal(
    ratios: Ratios, name: str, title: str, scheme: str, reason: Callable[[], str]
) -> Claim:
    beyond = ratios.beyond(scheme)
    # A reason why it saves much explains nothing where it costs time.
    saves = all(of[scheme] <= 1 for of in ratios.of.values())
    return Claim(
        name,
        f"{title} speeds iterations up only marginally (by less than {_MARGINAL:.0%}, and not "
        "down).",
        not beyond,
        why=f"it takes {', '.join(beyond)}; {reason() if saves else NOT_KNOWN}" if beyond else "",
    )


def _slowest_workers() -> str:
    """Return what two backups can take out, by the trace alone."""
    slowest, third = slowest_over_median(ClusterB().make(noisy=False))
    return (
        f"with equal batches the slowest worker takes {slowest:.1f} times as long as the median "
        f"one, in the mean of the trace's hour, and the third slowest {third:.1f} times: two "
        "backups spare the wait for the two slowest"
    )


def slowest_over_median(cluster: Cluster) -> tuple[float, float]:
    """Return how long the slowest, and the third slowest worker take, as means over the hour."""
    even = np.full(cluster.num_workers, cluster.total // cluster.num_workers)
    levels = [cluster.conditions(0, now) for now in np.arange(0.0, HOUR, LEVEL)]
    times = np.sort([cluster.expected_times(even, at) for at in levels], axis=1)
    slowest, third = (times[:, [-1, -3]] / np.median(times, axis=1, keepdims=True)).mean(axis=0)
    return float(slowest), float(third)


def _beats_flexrr(ratios: Ratios) -> Claim:
    ahead = ratios.ahead(ratios.narx, [FLEXRR])
    usual = FlexRR(num_workers=2)
    return Claim(
        "beats_flexrr",
        "LB-BSP is faster than FlexRR (paper: by up to 38.7 %), at the usual overheads "
        f"(monitoring {usual.monitoring:.0%}, moving {usual.moving:.0%}).",
        not ahead,
        why=f"at least as fast: {', '.join(ahead)}; {_where_it_changes(ratios)}",
    )


def _overhead_decides(ratios: Ratios) -> Claim:
    return Claim(
        "overhead_decides",
        "Somewhere among the assumed overheads FlexRR changes from faster than LB-BSP with NARX to "
        "slower (ResNet-32).",
        ratios.crossing is not None,
        of="evenstep",
        why=_where_it_changes(ratios),
    )


def _where_it_changes(ratios: Ratios) -> str:
    balanced = ratios.of["resnet32"][ratios.narx]
    if ratios.crossing is not None:
        return (
            "with ResNet-32, FlexRR changes from faster to slower at overheads of about "
            f"{ratios.crossing:.0%}; what the paper's FlexRR had is not said"
        )
    least, most = min(ratios.overheads.values()), max(ratios.overheads.values())
    return (
        f"with ResNet-32, at overheads of {min(ratios.overheads):.0%} to "
        f"{max(ratios.overheads):.0%} FlexRR has {least:.3f} to {most:.3f} of sequential BSP's "
        f"time, and LB-BSP {balanced:.3f} of BSP's"
    )


def base_of(scheme: str) -> str:
    """Return the BSP that a scheme is compared with: the one that processes samples as it does."""
    return SEQUENTIAL if scheme.partition(":")[0] in (FLEXRR, SEQUENTIAL) else BSP
