"""The trainings in Cluster-A that `cluster-a` and `accuracy` show (section 5.1): made once."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from evenstep.simulator.engine.comparison import Comparison
from reproduction.experiment import Progress, Settings
from reproduction.training import Runs, missed, over, train

if TYPE_CHECKING:
    from evenstep.simulator.workloads.workload import Workload

MODELS = {"cifarnet": "CifarNet", "resnet32": "ResNet-32", "inception_v3": "Inception-V3"}
TARGETS = {"cifarnet": 0.80, "resnet32": 0.86, "inception_v3": 0.65}
"""The paper's, on all of CIFAR-10, and of ImageNet."""
BSP, ASP, SSP, BALANCED = "bsp", "asp", "ssp", "lb-bsp"
ALG_2 = "lb-bsp:stepwise:literal=true"
SCHEMES = ",".join([BSP, ASP, SSP, ALG_2, BALANCED])
NAMES = {BSP: "BSP", ASP: "ASP", SSP: "SSP", ALG_2: "Alg. 2", BALANCED: "equal_finish"}
"""Names of schemes in sentences; the paper's LB-BSP on GPUs is Alg. 2."""
NEAR = 0.95
"""The target, as a part of BSP's best accuracy, where the paper's cannot be reached."""
_ALL_PICTURES = 50_000


@dataclass(frozen=True)
class Scale:
    """The trainings and their length."""

    workloads: Mapping[str, str]
    """Of each model."""
    learning_rate: float
    updates: Mapping[str, int]
    evaluations: int
    """Evaluations during a training, at most."""
    seeds: tuple[int, ...]


_DIGITS = dict.fromkeys(MODELS, "mlp")
QUICK = Scale(_DIGITS, 0.3, dict.fromkeys(MODELS, 60), 20, (0,))
_PAPERS = {model: model for model in MODELS}
_SMALLER = _PAPERS | {"resnet32": "resnet32:blocks=1"}
_SOME = {"cifarnet": 60, "resnet32": 60, "inception_v3": 200}
FULL = Scale(_SMALLER, 0.01, _SOME, 20, (0,))
"""As many updates as two cores make in an hour or two, under all schemes."""
EVERYTHING = Scale(_PAPERS, FULL.learning_rate, dict.fromkeys(MODELS, 2_000), 80, (0,))
"""With all of CIFAR-10: some 80 epochs, of Inception-V3 with its smaller batches some 20."""


@dataclass(frozen=True, eq=False)
class Trainings:
    """All schemes that trained one model."""

    comparison: Comparison
    model: str
    runs: Runs
    target: float
    is_papers: bool
    """Whether the target is the paper's own."""
    workload: str
    updates_per_epoch: float
    scale: Scale
    is_complete: bool = False
    """Whether all of CIFAR-10 was available."""

    def ratio(self, figure: str, label: str) -> float | None:
        """Return a figure of a scheme over BSP's, as `over` does."""
        return over(self.runs, BSP, figure, self.target)[label]


def trainings(settings: Settings, model: str, progress: Progress) -> Trainings:
    """Train a model under all schemes, or take the trainings that are finished already."""
    scale = settings.choose(QUICK, FULL)
    workload = _workload(settings, scale.workloads[model])
    complete = workload.num_samples == _ALL_PICTURES
    if complete:
        scale = EVERYTHING
        workload = _workload(settings, scale.workloads[model])
    comparison = Comparison(
        "A",
        workload,
        model,
        optimizer=_sgd(scale.learning_rate),
        iterations=scale.updates[model],
        evaluate_every=math.ceil(scale.updates[model] / scale.evaluations),
    )
    runs = train(model, comparison, SCHEMES, scale.seeds, settings.shared, progress)
    # A target that BSP itself misses would leave nothing to compare.
    is_papers = complete and best_of_bsp(runs) >= TARGETS[model]
    return Trainings(
        comparison,
        model,
        runs,
        TARGETS[model] if is_papers else near(runs),
        is_papers,
        workload.name,
        workload.num_samples / comparison.make_cluster(0).total,
        scale,
        complete,
    )


def near(runs: Runs) -> float:
    """Return the target that the BSP of these runs can reach."""
    return NEAR * best_of_bsp(runs)


def best_of_bsp(runs: Runs) -> float:
    """Return BSP's best accuracy, the median over seeds."""
    return float(np.median([trained.best for trained in runs[BSP]]))


def shown(runs: Runs, label: str, figure: str, target: float) -> float | str:
    """Return a figure of a scheme over BSP's, or the schemes that missed the target."""
    ratio = over(runs, BSP, figure, target)[label]
    if ratio is not None:
        return ratio
    names = who_missed(runs, label, target)
    return f"not reached by {names}" if names else "no ratio"


def who_missed(runs: Runs, label: str, target: float) -> str:
    """Return which of BSP and another scheme missed the target, if any did."""
    return " and ".join(NAMES[each] for each in missed(runs, (BSP, label), target))


def stale(settings: Settings, done: Trainings, progress: Progress) -> dict[str, Runs]:
    """Train with ASP and SSP under conditions in which staleness may cost more."""
    plain = done.comparison
    num_workers = plain.make_cluster(0).num_workers
    whole, momentum = _sgd(done.scale.learning_rate * num_workers), f"{_sgd(0.05)},momentum=0.9"
    # With n times the learning rate only ASP and SSP make sense, compared with BSP as it was.
    conditions: dict[str, tuple[str, Runs]] = {
        "the whole learning rate for each gradient": (whole, {BSP: done.runs[BSP]}),
        "momentum 0.9, 1/n of the learning rate 0.05": (momentum, {}),
    }
    runs: dict[str, Runs] = {"1/n of the learning rate for each gradient": done.runs}
    for name, (optimizer, known) in conditions.items():
        how = replace(plain, optimizer=optimizer)
        what, schemes = f"{done.model}, {name}", f"{ASP},{SSP}"
        runs[name] = train(what, how, schemes, done.scale.seeds, settings.shared, progress, known)
    return runs


def _sgd(learning_rate: float) -> str:
    return f"sgd:learning_rate={learning_rate}"


def _workload(settings: Settings, name: str) -> Workload:
    # Here, so that other experiments need no torch.
    from evenstep.simulator.workloads.registry import make_workload

    path = None if settings.quick else settings.data.cifar10
    return make_workload(name, None if path is None else str(path))
