"""The loop of a worker: the same promises for every framework that is built on it."""

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

import evenstep
from evenstep.core import Advice, Floats, as_ints
from evenstep.errors import DivergedPlans, InfeasibleLimits, InvalidSetting, StateFileError
from evenstep.insight.advice.observations import observations_of
from evenstep.insight.report.figures import figures_of, look_back
from evenstep.runlog import read
from evenstep.training.balancer_base import BalancerBase
from evenstep.training.collective import Alone, gather_values, require_agreement
from evenstep.training.epochs import Epochs
from evenstep.training.iteration import Iteration, Pass
from evenstep.training.loop import Loop, batches
from evenstep.training.loop_setup import make_loop
from evenstep.training.report_rows import ExtraColumn
from tests.figures import numbers_in
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


@pytest.mark.parametrize("theirs", [{"version of evenstep": "9.9.9"}, {}])
def test_workers_of_different_versions_are_refused(monkeypatch, theirs):
    """Also one from before versions were compared, which says nothing of its own."""

    def gathered(collective, mine):
        old = {name: value for name, value in mine.items() if name != "version of evenstep"}
        return [mine, mine, {**old, **theirs}]

    monkeypatch.setattr("evenstep.training.collective.gather_values", gathered)
    got = f"got {evenstep.__version__} on worker 0 and {theirs.get('version of evenstep')} on"
    with pytest.raises(InvalidSetting, match=f"version .* on all workers, {got} worker 2"):
        require_agreement({"total": 60}, Alone())


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


def hand_out(loop: Loop, of: Pass, size: int = 8) -> Iteration:
    iteration = loop.begin(of)
    loop.has_batch(as_ints([size]), (0, of.num_begun))
    return iteration


@pytest.fixture
def ahead() -> Iterator[Loop]:
    loop = make_loop(Alone(), 8, framework="threads", summary=False, fetches_ahead=True)
    yield loop
    loop.close()


def test_batches_that_are_fetched_ahead_are_trained_on_in_their_order(ahead):
    training = Pass()
    first, second, third = (hand_out(ahead, training) for _ in range(3))
    assert ahead.now is first and ahead.outstanding == [first, second, third]
    ahead.stop()
    ahead.use(second)
    ahead.keep()
    # The oldest one is next, though another one has been requested last.
    fourth = hand_out(ahead, training)
    assert ahead.now is third and ahead.outstanding == [third, fourth]
    assert ahead.stop().sizes.tolist() == [16]


def test_a_running_iteration_continues_after_an_evaluation_with_another_loader(ahead):
    training, evaluating = Pass(), Pass()
    first = hand_out(ahead, training)
    for _ in range(3):
        hand_out(ahead, evaluating, size=5)
    ahead.leave(evaluating)
    assert ahead.now is first and ahead.share.sizes.tolist() == [8]
    ahead.stop()
    # Nothing was trained on in the evaluation, so its batches are not next.
    second = hand_out(ahead, training)
    assert ahead.now is second and ahead.outstanding == [second]


def test_a_batch_that_was_left_out_is_not_trained_on_later(ahead):
    training = Pass()
    hand_out(ahead, training)
    second = hand_out(ahead, training)
    ahead.use(second)
    ahead.stop()
    assert ahead.outstanding == []


def test_the_end_of_a_pass_is_called_after_its_last_iteration(ahead):
    called: list[int] = []
    training, evaluating = Pass(), Pass()
    hand_out(ahead, training)
    ahead.leave(training)
    ahead.after(training, lambda: called.append(1))
    hand_out(ahead, evaluating)
    assert called == []
    ahead.stop()
    hand_out(ahead, evaluating)
    assert called == [1]
    ahead.leave(evaluating)
    ahead.after(evaluating, lambda: called.append(2))
    hand_out(ahead, Pass())
    assert called == [1]


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


OLD_STATE = {"epoch": 1, "position": 2, "seed": 5, "total": 6, "dataset length": 21}
"""As a version without the stock order wrote it, of Epochs(21, 6, seed=5)."""
OLD_REST = [
    [[10, 4, 6, 1], [8, 0]], [[19, 3], [17]],
    [[8, 5, 18, 15], [13, 12]], [[6, 10, 2, 19], [4, 1]], [[0, 3, 16, 20], [7, 9]],
    [[11, 17], [14]],
]  # fmt: skip
"""The samples of two workers that it dealt out after that, to the end of the next epoch."""


def rest_of(epochs, iterations):
    """Return the samples of two workers in the next iterations."""
    found = []
    sizes = np.array([4, 2])
    for _ in range(iterations):
        if epochs.deal(sizes, 0) is None:
            epochs.end()
        found.append([epochs.deal(sizes, worker).samples.tolist() for worker in (0, 1)])
        epochs.advance()
    return found


def test_checkpoint_of_an_earlier_version_goes_on_in_its_order_to_the_end():
    epochs = Epochs(21, 6, seed=5, num_workers=2)
    epochs.load_state_dict(OLD_STATE)
    assert rest_of(epochs, 3) == OLD_REST[:3]
    again = Epochs(21, 6, seed=5, num_workers=2)
    again.load_state_dict(epochs.state_dict())
    assert rest_of(again, 3) == OLD_REST[3:]


def test_checkpoint_goes_on_in_the_stock_order():
    epochs, whole = (Epochs(21, 6, seed=5, num_workers=2) for _ in range(2))
    expected = rest_of(whole, 8)
    assert rest_of(epochs, 3) == expected[:3]
    again = Epochs(21, 6, seed=5, num_workers=2)
    again.load_state_dict(epochs.state_dict())
    assert rest_of(again, 5) == expected[3:]
    # 21 samples and one of them again, for two workers.
    assert [len(one + other) for one, other in expected] == [6, 6, 6, 4] * 2


def test_offset_says_where_an_epoch_goes_on_whatever_the_totals_were():
    epochs = Epochs(40, 4, shuffle=False, num_workers=2)
    sizes = [[2, 2], [2, 2], [10, 6], [10, 6]]
    seen = [epochs_part(epochs, part) for part in sizes[:3]]
    again = Epochs(40, 4, shuffle=False, num_workers=2)
    again.load_state_dict(epochs.state_dict())
    seen.append(epochs_part(again, sizes[3]))
    assert seen == [list(range(4)), list(range(4, 8)), list(range(8, 24)), list(range(24, 40))]
    assert (len(again), again.position) == (4, 4)


def epochs_part(epochs, sizes):
    """Return the samples of all workers in the next iteration."""
    parts = [epochs.deal(np.array(sizes), worker).samples for worker in range(len(sizes))]
    epochs.advance()
    return sorted(np.concatenate(parts).tolist())


@pytest.mark.parametrize("drop_last", [False, True])
def test_no_iteration_has_repeated_samples_only(drop_last):
    # 64 samples are padded to 66 for 3 workers, but no stock loader has a total of 16 or 64 there.
    for total in (64, 16, 33, 10):
        epochs = Epochs(64, total, num_workers=3, shuffle=False, drop_last=drop_last)
        sizes = np.diff(np.arange(4) * total // 3)
        seen = []
        while epochs.deal(sizes, 0) is not None:
            seen.append(epochs_part(epochs, sizes))
        last = {64: 64, 16: 16, 33: 33, 10: 10 if drop_last else 6}[total]
        assert len(seen[-1]) == last
        assert len(seen) == (64 + 2 * (total == 33)) // total + (last == 6)


@pytest.mark.parametrize("pad", [None, "drop", 1.0])
def test_other_ways_to_pad_are_refused(pad):
    with pytest.raises(InvalidSetting, match="pad must be True, False or 'truncate', got"):
        Epochs(20, 6, pad=pad)


def change_total(collective, to=40, num_samples=220, **settings):
    """Train an epoch, by default with sizes in proportion to speeds; return what was dealt.

    The total changes after three iterations. Returns the loop, too.
    """
    settings = {"mode": "static", "shares": SPEEDS[: collective.num_workers], **settings}
    if settings["mode"] == "off":
        del settings["shares"]
    loop = make_loop(
        collective, TOTAL, framework="threads", summary=False,
        timer=SpeedTimer(SPEEDS[collective.worker]), **settings,
    )  # fmt: skip
    epochs = Epochs.of_loop(loop, num_samples, seed=3, pad=False)
    seen = []
    for dealt in batches(loop, epochs):
        loop.finish()
        loop.take(loop.collective.everybody(loop.slots().ravel().astype(np.float64)).sum(axis=0))
        seen.append(dealt)
        if loop.iteration == 3:
            loop.change_total(to[collective.worker] if isinstance(to, tuple) else to)
            assert len(epochs) == 3 + -(-max(0, num_samples - 3 * TOTAL) // loop.total)
    loop.close()
    return seen, loop


def test_total_changes_in_mid_epoch_and_each_sample_is_visited_once():
    workers = together(3, lambda collective: change_total(collective, num_samples=300))
    for seen, loop in workers:
        assert [int(dealt.sizes.sum()) for dealt in seen] == [70, 70, 70, 40, 40, 10]
        assert seen[2].sizes.tolist() == [40, 20, 10]
        assert seen[3].sizes.tolist() == [24, 11, 5]
        assert loop.total == loop.newest_plan.total == 40
    everything = np.concatenate([dealt.samples for seen, _ in workers for dealt in seen])
    assert np.array_equal(np.sort(everything), np.arange(300))


def test_workers_with_different_totals_are_found_out():
    with pytest.raises(DivergedPlans):
        together(2, lambda collective: change_total(collective, to=(40, 42)))
    with pytest.raises(DivergedPlans):
        together(2, lambda collective: change_total(collective, to=(40, TOTAL)))


@pytest.mark.parametrize("to", [2, 0, 2.5, 201])
def test_total_that_cannot_be_is_refused(to):
    with pytest.raises((InvalidSetting, InfeasibleLimits), match=f"got {to}|total {to}"):
        together(3, lambda collective: change_total(collective, to=to, maximum=66))


def test_run_log_with_two_totals_is_understood(tmp_path):
    path = tmp_path / "run.jsonl"
    together(3, lambda c: change_total(c, num_samples=1500, log=str(path), name=f"w{c.worker}"))
    run = read(path)
    assert [(total, len(part.iterations)) for part, total in run.parts] == [(70, 3), (40, 33)]
    [note] = run.events_of("note")
    assert (note.iteration, note.text) == (3, "the total changes from 70 to 40 samples")
    seen = observations_of(run)
    assert seen.total == 40
    assert set(seen.sizes.sum(axis=1)) == {40.0, 10.0}
    back = look_back(run)
    figures = figures_of(run, estimates=back.estimates)
    # The iterations of 70 samples were not slower for want of balancing.
    assert figures.total == 40
    assert figures.phase is not None and figures.phase.batch_sizes == [24, 11, 5]
    slowest, best = 1.0, 1.0 / (4 + 2 + 1)
    # By the speeds 4, 2 and 1 even sizes are 14, 13, 13, and the best ones 24, 11, 5.
    assert back.plain[10] == pytest.approx(13 * slowest, rel=0.1)
    assert back.optimum[10] == pytest.approx(40 * best, rel=0.1)


def test_summary_compares_each_total_with_its_own_even_sizes():
    (_, loop), *_ = together(3, lambda c: change_total(c, num_samples=1500, mode="off"))
    assert loop.summary().startswith("evenstep: batch sizes 14/13/13, as in plain BSP")
    (_, loop), *_ = together(3, lambda c: change_total(c, num_samples=1500))
    # By the speeds 4, 2 and 1: a third of the total at speed 1 against a seventh of it.
    assert numbers_in(loop.summary().split(";")[-1])[0] == pytest.approx(7 / 3, rel=0.1)


def test_checkpoint_holds_its_total():
    (_, loop), *_ = together(3, change_total)
    state = loop.state_dict()

    def work(collective, total):
        fresh = make_loop(collective, total, framework="threads", summary=False)
        fresh.load_state_dict(state)
        return fresh.total, fresh.plan.sizes.tolist()

    # The total was 70 at first, and 40 when the checkpoint was made.
    for total in (70, 40):
        assert together(3, partial(work, total=total)) == [(40, [24, 11, 5])] * 3
    with pytest.raises(StateFileError, match="total must be that of the checkpoint, 40, got 50"):
        together(3, partial(work, total=50))


def test_a_balancer_shows_its_worker_and_the_batch_sizes():
    balancer = BalancerBase()
    assert repr(balancer) == "BalancerBase(not bound to a model yet)"
    assert balancer._repr_html_() == f"<p>{balancer!r}</p>"
    name = "<b>"
    balancer._loop = make_loop(Alone(), 8, framework="threads", summary=False, name=name)
    assert repr(balancer) == "BalancerBase(worker 0 of 1, iteration 0, batch sizes 8 of 8)"
    assert "<td>&lt;b&gt;</td><td>8</td><td>100.0%</td>" in balancer._repr_html_()
