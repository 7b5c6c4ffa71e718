"""The loop of a worker: the same promises for every framework that is built on it."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from evenstep.core import Advice, Floats
from evenstep.errors import DivergedPlans, InvalidSetting
from evenstep.runlog import read
from evenstep.training.collective import Alone, gather_values, require_agreement
from evenstep.training.epochs import Epochs
from evenstep.training.extra_column import ExtraColumn
from evenstep.training.loop import batches
from evenstep.training.loop_setup import make_loop
from tests.training.cycle import Cycle, cycle
from tests.training.threads import ThreadCollective, together
from tests.training.timers import SpeedTimer

SPEEDS = (4.0, 2.0, 1.0)
TOTAL = 70


def train(collective: ThreadCollective, epochs_run=3, num_samples=500, **settings):
    loop = make_loop(
        collective, TOTAL, framework="threads", summary=False,
        timer=SpeedTimer(SPEEDS[collective.worker]), **settings,
    )  # fmt: skip
    epochs = Epochs(num_samples, TOTAL, seed=3)
    seen = []
    for _ in range(epochs_run):
        for dealt in batches(loop, epochs):
            loop.finish()
            rows = loop.collective.everybody(loop.slots().ravel().astype(np.float64)).sum(axis=0)
            loop.take(rows)
            seen.append((dealt.samples, dealt.sizes, loop.weight))
    loop.close()
    return seen, loop


def test_iterations_are_those_of_bsp_and_sizes_follow_speeds():
    workers = together(3, train)
    plain = together(3, lambda collective: train(collective, mode="off"))
    sizes = workers[0][0][6][1]
    assert sizes.tolist() == [40, 20, 10]
    for k, (_, sizes, _) in enumerate(workers[0][0]):
        balanced, even = _samples_of(workers, k), _samples_of(plain, k)
        assert np.array_equal(balanced, even)
        assert len(balanced) == sizes.sum()
        assert sum(seen[k][2] for seen, _ in workers) == pytest.approx(1, abs=1e-12)


def _samples_of(workers, k):
    return np.sort(np.concatenate([seen[k][0] for seen, _ in workers]))


def test_an_epoch_visits_every_sample_once():
    workers = together(3, lambda collective: train(collective, epochs_run=1))
    everything = np.concatenate([samples for seen, _ in workers for samples, _, _ in seen])
    assert np.array_equal(np.sort(everything), np.arange(500))


def test_the_run_log_has_every_iteration(tmp_path):
    path = tmp_path / "run.jsonl"
    together(3, lambda collective: train(collective, log=str(path), name=f"w{collective.worker}"))
    run = read(path)
    assert run.header.job == "threads" and run.header.workers == ("w0", "w1", "w2")
    assert sum(len(part.iterations) for part in run.segments) == 24


def test_who_goes_through_other_samples_is_found_out():
    def work(collective):
        loop = make_loop(collective, TOTAL, framework="threads", summary=False)
        epochs = Epochs(500, TOTAL)
        epochs.set_epoch(collective.worker)
        for _ in batches(loop, epochs):
            loop.finish()
            rows = loop.collective.everybody(loop.slots().ravel().astype(np.float64)).sum(axis=0)
            loop.take(rows)

    with pytest.raises(DivergedPlans, match="other samples"):
        together(2, work)


def test_settings_must_be_the_same_on_all_workers():
    def work(collective):
        make_loop(collective, 60 + collective.worker, framework="threads", summary=False)

    with pytest.raises(InvalidSetting, match="total must be the same on all workers, got 60"):
        together(2, work)


def test_a_mean_is_that_of_all_samples():
    def work(collective):
        loop = make_loop(
            collective, 8, framework="threads", mode="static", shares=(1, 3), summary=False
        )
        next(batches(loop, Epochs(16, 8)))
        return loop.mean(float(collective.worker))

    assert together(2, work) == [0.75, 0.75]


def test_a_state_is_taken_up_again():
    (_, loop), *_ = together(3, train)
    state = loop.state_dict()

    def work(collective):
        fresh = make_loop(collective, TOTAL, framework="threads", summary=False)
        fresh.load_state_dict(state)
        return fresh.iteration, fresh.plan.sizes.tolist()

    assert together(3, work) == [(24, [40, 20, 10])] * 3


def test_epochs_go_on_where_a_checkpoint_was_made():
    epochs = Epochs(20, 6, seed=1)
    epochs.advance()
    other = Epochs(20, 6, seed=1)
    other.load_state_dict(epochs.state_dict())
    sizes = np.array([2, 4])
    ours, theirs = epochs.deal(sizes, 1), other.deal(sizes, 1)
    assert ours is not None and theirs is not None
    assert np.array_equal(ours.samples, theirs.samples) and theirs.position == (0, 1)
    with pytest.raises(InvalidSetting, match="seed must be that of the checkpoint, 1, got 2"):
        Epochs(20, 6, seed=2).load_state_dict(epochs.state_dict())


def test_data_set_may_grow_between_epochs_but_not_in_mid_epoch():
    epochs, grown = Epochs(20, 6), Epochs(24, 6)
    grown.load_state_dict(epochs.state_dict())
    epochs.advance()
    with pytest.raises(InvalidSetting, match="of the checkpoint, 20, got 24 in mid-epoch"):
        grown.load_state_dict(epochs.state_dict())


def test_an_epoch_has_an_iteration():
    with pytest.raises(InvalidSetting, match="at least one iteration, got 5 samples"):
        Epochs(5, 6, drop_last=True)


def test_workers_tell_each_other_what_json_can_hold():
    said = together(
        3,
        lambda collective: gather_values(
            collective, {"worker": collective.worker, "ä": [None] * 3}
        ),
    )
    assert said == [[{"worker": worker, "ä": [None] * 3} for worker in range(3)]] * 3
    require_agreement({"total": 5}, Alone())


def test_sizes_are_of_whole_granules_where_the_total_is_not():
    workers = together(3, lambda collective: train(collective, granularity=8))
    sizes = [sizes.tolist() for _, sizes, _ in workers[0][0]]
    # Speeds are 4, 2 and 1: six, two and one of nine granules, which are two samples too many.
    assert sizes[6] == [46, 16, 8]
    assert all(sum(x) in (TOTAL, 500 % TOTAL) for x in sizes)


def test_a_batch_is_reported_as_the_work_that_it_is():
    reported = []

    class Telling(SpeedTimer):
        def batch(self, batch_size):
            reported.append(batch_size)

    loop = make_loop(Alone(), 12, framework="threads", summary=False, timer=Telling(1.0))
    for _ in batches(loop, Epochs(29, 12), size_of=lambda samples: 8.0 * -(-samples // 8)):
        loop.finish()
        loop.take(loop.slots())
    assert reported == [16, 16, 8]


def test_workers_on_unlike_devices_come_to_the_same_plans():
    devices = ("gpu", "cpu", "cpu")
    workers = together(3, lambda collective: train(collective, device=devices[collective.worker]))
    assert [type(loop._boundary.policy).__name__ for _, loop in workers] == ["EqualFinish"] * 3
    assert workers[0][0][-2][1].tolist() == [40, 20, 10]


def test_a_log_that_cannot_be_written_stops_all_workers(tmp_path):
    path = tmp_path / "nowhere" / "run.jsonl"

    def work(collective):
        with pytest.raises(InvalidSetting, match="log must be what worker 0 can write to, got"):
            make_loop(collective, TOTAL, framework="threads", summary=False, log=path)
        return collective.worker

    assert together(3, work) == [0, 1, 2]


def test_a_mean_over_nothing_is_no_number():
    loop = make_loop(Alone(), 8, framework="threads", summary=False)
    assert math.isnan(loop.mean(1.0))
    loop.close()


def test_a_setting_with_an_unknown_name_is_refused():
    unknown: Any = {"polcy": "even"}
    with pytest.raises(InvalidSetting, match=r"policy, .* got 'polcy'"):
        make_loop(Alone(), 8, framework="threads", **unknown)


def accumulated(collective: ThreadCollective):
    """Keep the gradients of one batch, skip one, and exchange those of the third with the first."""
    loop = make_loop(
        collective, 8, framework="threads", policy=cycle((2, 6), (3, 5), (4, 4)), summary=False
    )
    dealing = batches(loop, Epochs(24, 8))
    next(dealing)
    loop.keep()
    next(dealing)
    next(dealing)
    share = loop.share
    done = loop.stop()
    loop.close()
    return share.sizes.tolist(), loop.weight, done.sizes.tolist(), loop.iteration


def test_a_share_has_all_batches_whose_gradients_were_kept():
    (sizes, weight, exchanged, iteration), (_, other, *_) = together(2, accumulated)
    assert sizes == exchanged == [4, 12]
    assert (weight, other, iteration) == (0.25, 0.75, 1)


def behind(collective: ThreadCollective, lag: int):
    """Hand over rows that are read when a later iteration begins; return the sizes planned."""
    loop = make_loop(
        collective, 8, framework="threads", policy=cycle((1, 7), (2, 6), (3, 5), (4, 4)), lag=lag,
        summary=False,
    )  # fmt: skip
    sizes, read = [], []
    for dealt in batches(loop, Epochs(40, 8)):
        sizes.append(int(dealt.sizes[0]))
        done = loop.stop()
        loop.report()
        rows = collective.everybody(loop.slots().ravel().astype(np.float64)).sum(axis=0)
        shaped = rows.reshape(loop.num_workers, -1).astype(np.float32)

        def arrived(k: int = done.iteration, rows: Any = shaped) -> Any:
            read.append(k)
            return rows

        loop.arrive(done, arrived)
    before = list(read)
    loop.close()
    return sizes, before, read


@pytest.mark.parametrize("lag", [0, 1])
def test_rows_are_read_when_an_iteration_begins_and_the_last_ones_at_the_end(lag):
    (sizes, before, read), _ = together(2, lambda collective: behind(collective, lag))
    # The plan of the reports about k-1 is for k; where the device runs ahead, for k+1.
    assert sizes == ([1, 2, 3, 4, 1] if lag == 0 else [1, 1, 2, 3, 4])
    assert before == list(range(4 - lag))
    assert read == list(range(5))


class Saying:
    """Says this worker's number, and remembers what all have said."""

    def __init__(self, worker: int) -> None:
        self.worker = worker
        self.heard: list[list[float]] = []

    def say(self) -> float:
        return self.worker + 0.5

    def hear(self, numbers: Floats) -> None:
        self.heard.append(numbers.tolist())

    def close(self) -> None:
        self.heard.append([])


def told(collective: ThreadCollective):
    column, saying = ExtraColumn(), Saying(collective.worker)
    column.take(saying)
    train(collective, epochs_run=1, num_samples=2 * TOTAL, column=column)
    return saying.heard


def test_an_extra_column_travels_behind_the_rows():
    assert together(2, told) == [[[0.5, 1.5], [0.5, 1.5], []]] * 2


def test_a_cap_that_was_learned_limits_the_plans_of_all_workers():
    def work(collective):
        loop = make_loop(collective, 8, framework="threads", mode="off", summary=False)
        loop.cap = 2 if collective.worker == 0 else None
        for _ in batches(loop, Epochs(16, 8)):
            loop.finish()
            loop.take(collective.everybody(loop.slots().ravel().astype(np.float64)).sum(axis=0))
        loop.close()
        return loop.newest_plan.sizes.tolist()

    assert together(2, work) == [[2, 6]] * 2


def test_an_interrupted_iteration_continues_where_another_loader_ends():
    loop = make_loop(Alone(), 8, framework="threads", summary=False)
    first = next(batches(loop, Epochs(16, 8)))
    training = loop.now
    assert len(list(batches(loop, Epochs(5, 8)))) == 1
    loop.resume(training, loop.now)
    assert loop.now is training
    assert loop.share.sizes.tolist() == first.sizes.tolist() == [8]
    loop.stop()
    loop.resume(training, training)
    assert loop.iteration == 1 and loop.now.is_done
    loop.close()


def test_a_straggler_is_left_behind_where_that_is_asked_for():
    class Advised(Cycle):
        def plan(self, view, state):
            decision, state = super().plan(view, state)
            return replace(decision, advice=(Advice(1, 0.5),)), state

    left = []

    def work(collective):
        policy = Advised(((4, 4),))
        loop = make_loop(
            collective, 8, framework="threads", policy=policy, summary=False,
            name=f"w{collective.worker}", restart=lambda *straggler: left.append(straggler),
        )  # fmt: skip
        for _ in batches(loop, Epochs(8 * 11, 8)):
            loop.finish()
            loop.take(collective.everybody(loop.slots().ravel().astype(np.float64)).sum(axis=0))
        loop.close()

    together(2, work)
    assert left == [(1, "w1")] * 2
