"""From a described cluster to a case: curves are known, conditions are looked at."""

from __future__ import annotations

import numpy as np

from evenstep.advice.case import Case
from evenstep.clusters.cluster import Cluster
from evenstep.core.policy import even_sizes


def case_of_cluster(cluster: Cluster, num_rows: int) -> Case:
    """Return the case of iterations all along a run; clocks run as they do under plain BSP."""
    rows = np.unique(np.linspace(0, cluster.iterations - 1, num_rows).astype(int))
    even = even_sizes(cluster.total, cluster.limits)
    conditions, now, last = [], 0.0, 0
    for row in rows.tolist():
        at = cluster.conditions(row, now)
        conditions.append(at)
        # As long as this one took all took since.
        now += float(cluster.times(even, at).max()) * max(row - last, 1)
        last = row
    return Case.of(cluster, conditions)
