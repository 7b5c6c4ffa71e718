"""The loop of a worker: the same promises for every framework that is built on it."""

import math

import numpy as np
import pytest

from evenstep.errors import DivergedPlans, InvalidSetting
from evenstep.runlog import read
from evenstep.training.epochs import Epochs
from evenstep.training.loop import batches
from evenstep.training.making import make_loop
from evenstep.training.meeting import Alone, require_agreement, tell
from tests.training.threads import ThreadMeeting, together
from tests.training.timers import SpeedTimer

SPEEDS = (4.0, 2.0, 1.0)
TOTAL = 70


def train(meeting: ThreadMeeting, epochs_run=3, num_samples=500, **settings):
    loop = make_loop(
        meeting, TOTAL, framework="threads", summary=False,
        timer=SpeedTimer(SPEEDS[meeting.worker]), **settings,
    )  # fmt: skip
    epochs = Epochs(num_samples, TOTAL, seed=3)
    seen = []
    for _ in range(epochs_run):
        for dealt in batches(loop, epochs):
            loop.finish()
            rows = loop.meeting.everybody(loop.slots().ravel().astype(np.float64)).sum(axis=0)
            loop.take(rows)
            seen.append((dealt.samples, dealt.sizes, loop.weight))
    loop.close()
    return seen, loop


def test_iterations_are_those_of_bsp_and_sizes_follow_speeds():
    workers = together(3, train)
    plain = together(3, lambda meeting: train(meeting, mode="off"))
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
    workers = together(3, lambda meeting: train(meeting, epochs_run=1))
    everything = np.concatenate([samples for seen, _ in workers for samples, _, _ in seen])
    assert np.array_equal(np.sort(everything), np.arange(500))


def test_the_run_log_has_every_iteration(tmp_path):
    path = tmp_path / "run.jsonl"
    together(3, lambda meeting: train(meeting, log=str(path), name=f"w{meeting.worker}"))
    run = read(path)
    assert run.header.job == "threads" and run.header.workers == ("w0", "w1", "w2")
    assert sum(len(part.iterations) for part in run.segments) == 24


def test_who_goes_through_other_samples_is_found_out():
    def work(meeting):
        loop = make_loop(meeting, TOTAL, framework="threads", summary=False)
        epochs = Epochs(500, TOTAL)
        epochs.set_epoch(meeting.worker)
        for _ in batches(loop, epochs):
            loop.finish()
            rows = loop.meeting.everybody(loop.slots().ravel().astype(np.float64)).sum(axis=0)
            loop.take(rows)

    with pytest.raises(DivergedPlans, match="other samples"):
        together(2, work)


def test_settings_must_be_the_same_on_all_workers():
    def work(meeting):
        make_loop(meeting, 60 + meeting.worker, framework="threads", summary=False)

    with pytest.raises(InvalidSetting, match="total must be the same on all workers, got 60"):
        together(2, work)


def test_a_mean_is_that_of_all_samples():
    def work(meeting):
        loop = make_loop(
            meeting, 8, framework="threads", mode="static", shares=(1, 3), summary=False
        )
        next(batches(loop, Epochs(16, 8)))
        return loop.mean(float(meeting.worker))

    assert together(2, work) == [0.75, 0.75]


def test_a_state_is_taken_up_again():
    (_, loop), *_ = together(3, train)
    state = loop.state_dict()

    def work(meeting):
        fresh = make_loop(meeting, TOTAL, framework="threads", summary=False)
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
    assert np.array_equal(ours.samples, theirs.samples) and theirs.place == (0, 1)
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
    said = together(3, lambda meeting: tell(meeting, {"worker": meeting.worker, "ä": [None] * 3}))
    assert said == [[{"worker": worker, "ä": [None] * 3} for worker in range(3)]] * 3
    require_agreement({"total": 5}, Alone())


def test_sizes_are_of_whole_granules_where_the_total_is_not():
    workers = together(3, lambda meeting: train(meeting, granularity=8))
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
    workers = together(3, lambda meeting: train(meeting, device=devices[meeting.worker]))
    assert [type(loop._boundary.policy).__name__ for _, loop in workers] == ["EqualFinish"] * 3
    assert workers[0][0][-2][1].tolist() == [40, 20, 10]


def test_a_log_that_cannot_be_written_stops_all_workers(tmp_path):
    path = tmp_path / "nowhere" / "run.jsonl"

    def work(meeting):
        with pytest.raises(InvalidSetting, match="log must be what worker 0 can write to, got"):
            make_loop(meeting, TOTAL, framework="threads", summary=False, log=path)
        return meeting.worker

    assert together(3, work) == [0, 1, 2]


def test_a_mean_over_nothing_is_no_number():
    loop = make_loop(Alone(), 8, framework="threads", summary=False)
    assert math.isnan(loop.mean(1.0))
    loop.close()
