"""What is said to be the paper's is the paper's."""

from reproduction.experiments import EXPERIMENTS

FIGURES = {
    "cpu-curve": "Fig. 1, section 3.2.1",
    "slowdown": "Fig. 2, section 3.2.2",
    "gpu-curve": "Fig. 4, section 3.3.1",
    "weighted": "section 3.4",
    "partitions": "section 3.5",
    "cluster-a": "Fig. 6, section 5.1",
    "accuracy": "Fig. 7, section 5.1",
    "micro": "Fig. 8, section 5.2",
    "cluster-b": "Fig. 9, section 5.3",
    "narx-curve": "Fig. 10, section 5.4",
    "predictors": "Table 3, section 5.4",
    "overhead": "Fig. 11, section 5.5",
    "scale": "beyond the paper",
    "modern": "beyond the paper",
}
"""As its captions count them; Fig. 3 is NARX's architecture, Fig. 5 the workflow."""


def test_figures_are_counted_as_in_the_paper():
    assert {name: each.of_paper for name, each in EXPERIMENTS.items()} == FIGURES
