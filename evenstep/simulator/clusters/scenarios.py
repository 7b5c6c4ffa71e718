"""The built-in scenarios: clusters generated from a seed.

`G` resembles the paper's Cluster-A (four kinds of GPU, the optimum (89, 21, 12, 6)); `P`, `S` and
`M` resemble Cluster-B: 32 CPU workers that share their machines with background tasks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from evenstep.core import UNLIMITED
from evenstep.errors import InvalidSetting
from evenstep.simulator.clusters.cluster import Cluster
from evenstep.simulator.clusters.conditions import Conditions, Environment, Swap
from evenstep.simulator.clusters.curves import Curves, affine, linear
from evenstep.simulator.clusters.noise import QUIET, Noise, WorkerNoise
from evenstep.simulator.clusters.scheduled import Change, Scheduled
from evenstep.simulator.clusters.tasks import BackgroundTasks, TaskLoad


@dataclass(frozen=True)
class _Gpu:
    name: str
    per_sample: float
    """b, in seconds."""
    optimum: int
    """x at which this kind takes 1.1 s."""
    saturation: int
    """x^s."""
    cap: int
    """x^o."""


_GPUS = (
    _Gpu("V100", 0.5 / 57, 89, 24, 176),
    _Gpu("M60", 0.03, 21, 8, 72),
    _Gpu("K80", 0.05, 12, 4, 104),
    _Gpu("K520", 2 / 26, 6, 2, 32),
)
_GPU_COMMUNICATION = 0.15
_GPU_DEGRADED = 0.61
_GPU_CHANGE_AT = 150
_GPU_SAMPLES = 32
_GPU_NOISE = WorkerNoise(sigma=0.03, spike_probability=0.01, spike=(1.5, 3.0))


def gpu(
    num_workers: int, iterations: int, seed: int, noisy: bool = True, v100_cap: int | None = None
) -> Cluster:
    """Make scenario G: at iteration 150 the M60s lose most of their bandwidth."""
    kinds = len(_GPUS)
    if num_workers % kinds:
        raise InvalidSetting(
            f"scenario G has as many workers of each of {kinds} kinds: their number must be a "
            f"multiple of {kinds}, got {num_workers}"
        )
    gpus = [kind for kind in _GPUS for _ in range(num_workers // kinds)]
    # Devices of one kind differ a little in larger clusters; four workers match the paper.
    spread = 0.03 if num_workers >= 16 else 0.0
    # The third word separates this stream from those of the noise, (seed, iteration).
    rng = np.random.default_rng((seed, num_workers, 1))
    factors = np.exp(spread * rng.standard_normal((num_workers, 2)))
    curves = [
        affine((1.1 - gpu.per_sample * gpu.optimum) * a, gpu.per_sample * b, gpu.saturation)
        for gpu, (a, b) in zip(gpus, factors, strict=True)
    ]
    m60s = np.array([i for i, gpu in enumerate(gpus) if gpu.name == "M60"])
    return Cluster(
        name="G",
        workers=number_names([gpu.name for gpu in gpus]),
        curves=Curves.of(curves),
        cap=np.array([v100_cap if v100_cap and g.name == "V100" else g.cap for g in gpus]),
        environment=Scheduled(
            communication=np.full(num_workers, _GPU_COMMUNICATION),
            noise=Noise.of([_GPU_NOISE if noisy else QUIET] * num_workers, seed),
            changes=[Change(_GPU_CHANGE_AT, m60s, communication=_GPU_DEGRADED)],
        ),
        total=_GPU_SAMPLES * num_workers,
        iterations=iterations,
        changes_at=_GPU_CHANGE_AT,
    )


CPU_KINDS = (
    ("m4.2xlarge", 17, 60.0),
    ("c5.2xlarge", 10, 90.0),
    ("r4.2xlarge", 2, 64.0),
    ("m4.4xlarge", 2, 115.0),
    ("m4.xlarge", 1, 31.0),
)
"""Instance type, number of workers, samples per second (the paper's table of Cluster-B)."""
CPU_SAMPLES = 128

LOADS = {
    "P": TaskLoad(
        tasks=1.5, largest_cpu=0.25, jitter=0.08, jitter_rebound=0.8, steady=0.9, spike_up=0.7
    ),
    "S": TaskLoad(tasks=1.5, largest_cpu=0.4, spike_probability=0.02),
    "M": TaskLoad(tasks=2.0, largest_cpu=0.2, largest_memory=0.5, swap=Swap(0.3, 2.0)),
}


def cpu(name: str, num_workers: int, iterations: int, seed: int, noisy: bool = True) -> Cluster:
    """Make scenario P, S or M; other numbers of workers sample or repeat the 32 of Cluster-B."""
    kinds = [(kind, speed) for kind, count, speed in CPU_KINDS for _ in range(count)]
    chosen = [kinds[i * len(kinds) // num_workers % len(kinds)] for i in range(num_workers)]
    tasks = BackgroundTasks(LOADS[name], num_workers, iterations, seed)
    return Cluster(
        name=name,
        workers=number_names([kind for kind, _ in chosen]),
        curves=Curves.of([linear(speed) for _, speed in chosen]),
        cap=np.full(num_workers, UNLIMITED),
        environment=tasks if noisy else _Silenced(tasks),
        total=CPU_SAMPLES * num_workers,
        iterations=iterations,
        score_from=500,
        policy="proportional",
    )


def identical(num_workers: int, iterations: int, seed: int, noisy: bool = True) -> Cluster:
    """Make a cluster of equal workers, on which balancing can only lose."""
    return Cluster(
        name="identical",
        workers=number_names(["worker"] * num_workers),
        curves=Curves.of([affine(0.3, 0.025)] * num_workers),
        cap=np.full(num_workers, 96),
        environment=Scheduled(
            communication=np.full(num_workers, 0.1),
            noise=Noise.of([_GPU_NOISE if noisy else QUIET] * num_workers, seed),
        ),
        total=_GPU_SAMPLES * num_workers,
        iterations=iterations,
    )


@dataclass(frozen=True)
class Scenario:
    """A function that makes a scenario's cluster, and the default size."""

    make: Callable[..., Cluster]
    num_workers: int
    iterations: int
    summary: str


SCENARIOS = {
    "G": Scenario(gpu, 4, 500, "four kinds of GPU, the M60s degraded at iteration 150"),
    "P": Scenario(
        lambda **how: cpu("P", **how), 32, 1500, "shared CPUs that fluctuate, visible in c"
    ),
    "S": Scenario(lambda **how: cpu("S", **how), 32, 1500, "shared CPUs with larger tasks"),
    "M": Scenario(lambda **how: cpu("M", **how), 32, 1500, "shared CPUs short of memory"),
    "identical": Scenario(identical, 16, 500, "equal workers: balancing can only lose"),
}


def make_scenario(
    name: str,
    num_workers: int | None = None,
    iterations: int | None = None,
    seed: int = 0,
    noisy: bool = True,
) -> Cluster:
    """Make the cluster of a built-in scenario; None stands for its default."""
    if name not in SCENARIOS:
        raise InvalidSetting(f"scenario must be one of {', '.join(SCENARIOS)}, got {name!r}")
    scenario = SCENARIOS[name]
    num_workers = scenario.num_workers if num_workers is None else num_workers
    iterations = scenario.iterations if iterations is None else iterations
    for what, count in (("number of workers", num_workers), ("number of iterations", iterations)):
        if count < 1:
            raise InvalidSetting(f"the {what} must be >= 1, got {count}")
    return scenario.make(num_workers=num_workers, iterations=iterations, seed=seed, noisy=noisy)


@dataclass(frozen=True, eq=False)
class _Silenced:
    """An environment without its noise."""

    environment: Environment

    @property
    def follows_clock(self) -> bool:
        return self.environment.follows_clock

    def conditions(self, iteration: int, now: float) -> Conditions:
        at = self.environment.conditions(iteration, now)
        return replace(at, noise=np.ones_like(at.noise))


def number_names(kinds: list[str]) -> list[str]:
    """Name workers after their kind, numbered where a kind has several.

    >>> number_names(["V100", "K80", "K80"])
    ['V100', 'K80-0', 'K80-1']
    """
    counts, seen = Counter(kinds), Counter[str]()
    names = []
    for kind in kinds:
        names.append(kind if counts[kind] == 1 else f"{kind}-{seen[kind]}")
        seen[kind] += 1
    return names


def emulated_gpus(num_workers: int, scale: float) -> Cluster:
    """Return workers of scenario G's kinds in turn, with times multiplied by `scale`, noise-free.

    >>> cluster = emulated_gpus(4, scale=0.125)
    >>> best = cluster.optimum(cluster.conditions(0, now=0.0))
    >>> best, cluster.curves.times_at(best).round(4)
    (array([89, 21, 12,  6]), array([0.1375, 0.1375, 0.1375, 0.1375]))
    """
    gpus = make_scenario("G", noisy=False)
    kinds = np.arange(num_workers) % gpus.num_workers
    curves = gpus.curves
    names = [gpus.workers[kind] for kind in kinds.tolist()]
    if num_workers > gpus.num_workers:
        names = [f"{name}-{i // gpus.num_workers}" for i, name in enumerate(names)]
    return replace(
        gpus,
        name="emulated GPUs",
        workers=names,
        curves=Curves(
            curves.sizes[kinds], scale * curves.times[kinds], scale * curves.slopes[kinds]
        ),
        cap=gpus.cap[kinds],
        environment=Scheduled(
            communication=np.zeros(num_workers), noise=Noise.of([QUIET] * num_workers, seed=0)
        ),
        total=_GPU_SAMPLES * num_workers,
        bandwidth=gpus.bandwidth[kinds],
        changes_at=None,
    )
