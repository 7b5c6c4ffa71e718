"""Cluster-A with and without its V100s: the less unequal the workers, the less there is to gain."""

from __future__ import annotations

from evenstep.engines.comparison import Comparison
from evenstep.reproduce.end_to_end import ALG_2, BALANCED, BSP, scale_of
from evenstep.reproduce.experiment import Progress, Settings, part_of
from evenstep.reproduce.result import Table, beside
from evenstep.reproduce.training import over, train

PAPER = {16: 0.63, 12: 0.72}
"""Number of workers: LB-BSP's iteration time over BSP's, with ResNet-32."""


def without_v100s(settings: Settings, progress: Progress) -> Table:
    """Compare times with 16 workers and with 12, without the V100s; no gradients."""
    rows = []
    for i, (num_workers, paper) in enumerate(PAPER.items()):
        comparison = Comparison(
            f"A:{num_workers},model=resnet32", iterations=settings.choose(100, 500)
        )
        runs = train(
            f"times, {num_workers}",
            comparison,
            f"{ALG_2},{BALANCED},lb-bsp:oracle",
            scale_of(settings).seeds,
            settings.shared,
            part_of(progress, i, len(PAPER)),
        )
        ratios = over(runs, BSP, "per_update")
        rows.append(
            {
                "workers": num_workers,
                **{
                    name: value
                    for name, label in (("Alg. 2", ALG_2), ("equal_finish", BALANCED))
                    for name, value in beside(f"{name}: time / BSP", ratios[label], paper).items()
                },
                "oracle: time / BSP": ratios["lb-bsp:oracle"],
            }
        )
    return Table("ResNet-32 with and without the V100s: iteration time over BSP's", "virtual", rows)
