"""Checks the data before a long run, with the loaders that the experiments use."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from pathlib import Path

from reproduction.experiment import Experiment, Settings

_ROWS = 10_000
"""Rows of the URLs: all of them take minutes. An error further back stops their experiment."""


def check_data(experiments: Iterable[Experiment], settings: Settings) -> None:
    """Read the data that these experiments take; raise DataFileError for other files."""
    names = {name for experiment in experiments for name in settings.taken(experiment.data)}
    for name, path in settings.data.found.items():
        if name in names:
            # An experiment without its packages fails, so its data do not matter.
            with contextlib.suppress(ModuleNotFoundError):
                LOADERS[name](path)


def _open_cifar10(path: Path) -> None:
    from evenstep.simulator.workloads.pictures import load_pictures

    load_pictures(str(path))


def _open_urls(path: Path) -> None:
    from evenstep.simulator.workloads.svmlight import read_svmlight

    read_svmlight(path, _ROWS)


def _open_profet(path: Path) -> None:
    from reproduction.experiments.gpu_curve import read_curves

    read_curves(path)


def _open_google(path: Path) -> None:
    from reproduction.sampled_cluster_b import draw_cluster

    draw_cluster(path, seed=0)


LOADERS: dict[str, Callable[[Path], None]] = {
    "cifar10": _open_cifar10,
    "urls": _open_urls,
    "profet": _open_profet,
    "google": _open_google,
}
"""By the names of data sets."""
