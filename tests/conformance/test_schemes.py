"""What every scheme promises, whatever the order of arrivals: one suite over all of them."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from evenstep.errors import InvalidSetting
from evenstep.simulator.schemes import SCHEMES, Answer, Bsp, Ssp, make_scheme

SPECS = ("bsp", "bsp:backups=1", "bsp:backups=3", "asp", "ssp", "ssp:bound=1", "flexrr")
NUM_WORKERS = 5
over_schemes = pytest.mark.parametrize("spec", SPECS)
over_seeds = pytest.mark.parametrize("seed", range(4))


class Workers:
    """Workers that follow a scheme's answers to the letter, and keep what became of gradients."""

    def __init__(self, spec: str, seed: int) -> None:
        self.scheme = make_scheme(spec, NUM_WORKERS)
        self.rng = np.random.default_rng(seed)
        self.present = set(range(NUM_WORKERS))
        self.running: dict[int, int] = {}
        """The gradient that each worker is computing."""
        self.waiting: set[int] = set()
        self.finished = Counter[int]()
        self.num_gradients = 0
        self.used: list[int] = []
        self.abandoned: list[int] = []
        self.pushed = 0.0
        """The weights pushed since the last update."""
        self.updates: list[float] = []
        """The weights in each update."""
        self._start(tuple(range(NUM_WORKERS)))

    def arrive(self, worker: int | None = None) -> Answer:
        worker = int(self.rng.choice(sorted(self.running))) if worker is None else worker
        gradient = self.running.pop(worker)
        self.waiting.add(worker)
        self.finished[worker] += 1
        answer = self.scheme.arrive(worker)
        assert answer.used == (answer.weight > 0)
        if answer.used:
            self.used.append(gradient)
            self.pushed += answer.weight
        self._follow(answer)
        return answer

    def leave(self, worker: int) -> None:
        self.present.remove(worker)
        self.running.pop(worker, None)
        self.waiting.discard(worker)
        self._follow(self.scheme.leave(worker))

    def join(self, worker: int) -> None:
        """Take a worker back, or start one anew."""
        self.running.pop(worker, None)
        if worker not in self.present:
            self.present.add(worker)
            self.waiting.add(worker)
        self._follow(self.scheme.join(worker))

    def _follow(self, answer: Answer) -> None:
        assert set(answer.starts) <= self.present
        if answer.update:
            self.updates.append(self.pushed)
            self.pushed = 0.0
        for worker in answer.abandoned:
            self.abandoned.append(self.running.pop(worker))
        self._start(answer.starts)

    def _start(self, starts: tuple[int, ...]) -> None:
        assert list(starts) == sorted(set(starts))
        for worker in starts:
            assert worker not in self.running
            self.running[worker] = self.num_gradients
            self.num_gradients += 1
            self.waiting.discard(worker)


@over_schemes
@over_seeds
def test_somebody_always_runs(spec, seed):
    workers = Workers(spec, seed)
    for _ in range(500):
        workers.arrive()
        assert workers.running


@over_schemes
@over_seeds
def test_no_gradient_is_used_twice_and_none_that_was_abandoned(spec, seed):
    workers = Workers(spec, seed)
    for _ in range(500):
        workers.arrive()
    assert len(set(workers.used)) == len(workers.used) == 500
    assert not set(workers.used) & set(workers.abandoned)


@over_schemes
@over_seeds
def test_weights_of_as_many_gradients_as_count_add_up_to_one_update(spec, seed):
    workers = Workers(spec, seed)
    counted = workers.scheme.num_counted
    for _ in range(60 * counted):
        workers.arrive()
    each = 1.0 if workers.scheme.synchronous else 1 / counted
    assert workers.updates == pytest.approx([each] * (60 if workers.scheme.synchronous else 300))
    assert sum(workers.updates) == pytest.approx(60)


@pytest.mark.parametrize("spec", [s for s in SPECS if make_scheme(s, NUM_WORKERS).synchronous])
def test_bsp_kinds_update_once_per_iteration_and_drop_the_backups(spec):
    workers = Workers(spec, 7)
    counted = workers.scheme.num_counted
    for iteration in range(1, 50):
        answers = [workers.arrive() for _ in range(counted)]
        assert [a.update for a in answers] == [False] * (counted - 1) + [True]
        assert answers[-1].starts == tuple(range(NUM_WORKERS))
        assert len(workers.abandoned) == iteration * (NUM_WORKERS - counted)


@pytest.mark.parametrize("bound", [1, 2, 5])
@over_seeds
def test_lead_over_the_slowest_stays_within_the_bound(bound, seed):
    workers = Workers(f"ssp:bound={bound}", seed)
    leads = []
    for _ in range(600):
        workers.arrive()
        slowest = min(workers.finished[i] for i in range(NUM_WORKERS))
        leads += [workers.finished[i] - slowest for i in workers.running]
        # Nobody waits without need.
        assert all(workers.finished[i] - slowest >= bound for i in workers.waiting)
    assert max(leads) == bound - 1


@over_seeds
def test_ssp_with_bound_one_releases_as_bsp(seed):
    rng = np.random.default_rng(seed)
    ssp, bsp = Ssp(NUM_WORKERS, bound=1), Bsp(NUM_WORKERS)
    for _ in range(50):
        for worker in rng.permutation(NUM_WORKERS).tolist():
            assert ssp.arrive(worker).starts == bsp.arrive(worker).starts


@over_schemes
@over_seeds
def test_somebody_runs_whoever_comes_and_goes(spec, seed):
    workers = Workers(spec, seed)
    absent: set[int] = set()
    for _ in range(800):
        event = workers.rng.random()
        if event < 0.1 and len(workers.present) > 0:
            gone = int(workers.rng.choice(sorted(workers.present)))
            workers.leave(gone)
            absent.add(gone)
        elif event < 0.2 and absent:
            back = int(workers.rng.choice(sorted(absent)))
            absent.discard(back)
            workers.join(back)
        elif event < 0.25 and workers.running:
            workers.join(int(workers.rng.choice(sorted(workers.running))))
        elif workers.running:
            workers.arrive()
        assert bool(workers.running) == bool(workers.present)
        assert workers.running.keys() | workers.waiting == workers.present
    assert len(set(workers.used)) == len(workers.used)


@over_schemes
def test_worker_started_anew_runs_again(spec):
    workers = Workers(spec, 0)
    workers.join(2)
    assert 2 in workers.running
    assert workers.running.keys() == set(range(NUM_WORKERS))


def test_every_scheme_is_in_the_suite():
    assert {spec.partition(":")[0] for spec in SPECS} == set(SCHEMES)


@pytest.mark.parametrize(
    ("spec", "problem"),
    [("gossip", "scheme must be one of bsp"), ("ssp:limit=3", "a setting of 'ssp' must be one of")],
)
def test_short_form_is_checked(spec, problem):
    with pytest.raises(InvalidSetting, match=problem):
        make_scheme(spec, 3)
