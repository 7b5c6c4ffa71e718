"""Streams: each sample of every worker's stream once, and the gradient of the joined batch."""

from __future__ import annotations

import itertools
import logging
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from evenstep import runlog
from evenstep.core.rows import sealed
from evenstep.pytorch import Balancer
from tests.pytorch.setup import (
    balanced,
    cycle,
    data,
    distance,
    exchange,
    gradients,
    model_of,
    net,
    visited,
)
from tests.pytorch.sharding import sharded, whole_gradients

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(120)]

TABLE = ((2, 10), (11, 1), (6, 6), (1, 11), (8, 4))
TOTAL = 12
LENGTHS = (37, 95)


class Numbers(IterableDataset[tuple[int, str]]):
    """A stream whose samples say which they are; loading processes share it."""

    def __init__(self, first: int, count: int) -> None:
        self._range = range(first, first + count)
        self.num_begun = 0

    def __iter__(self):
        self.num_begun += 1
        info = get_worker_info()
        part = self._range if info is None else self._range[info.id :: info.num_workers]
        return ((i, f"sample {i}") for i in part)


class Stateful(IterableDataset[tuple[int, str]]):
    """A stream with a state, as torchdata asks for: the iterator of the data set saves it."""

    def __init__(self, first: int, count: int) -> None:
        self._first, self._count = first, count
        self.num_read = 0

    def __iter__(self):
        return Position(self)

    def at(self, position):
        self.num_read += 1
        index = self._first + position
        return index, f"sample {index}"


class Position:
    """The iterator of a stream, which can be saved and restored."""

    def __init__(self, stream):
        self._stream, self._next = stream, 0

    def __iter__(self):
        return self

    def __next__(self):
        if self._next == self._stream._count:
            raise StopIteration
        self._next += 1
        return self._stream.at(self._next - 1)

    def state_dict(self):
        return {"next": self._next}

    def load_state_dict(self, state):
        self._next = state["next"]


class StatefulSet(Stateful):
    """A stream with a state where the data set itself saves it."""

    _next = _begin = 0

    def __iter__(self):
        begin, self._begin = self._begin, 0
        for position in range(begin, self._count):
            self._next = position + 1
            yield self.at(position)

    def state_dict(self):
        return {"next": self._next}

    def load_state_dict(self, state):
        self._begin = state["next"]


class StatefulLoader(DataLoader[Any]):
    """Stands in for torchdata's StatefulDataLoader: the next iterator continues from a state."""

    def __init__(self, *arguments: Any, snapshot_every_n_steps: int = 1, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.snapshot_every_n_steps = snapshot_every_n_steps
        self._num_yielded, self._start, self._is_finished = 0, 0, False

    def __iter__(self):
        self._num_yielded, self._start = self._start, 0
        items = super().__iter__()
        for _ in range(self._num_yielded):
            next(items)
        return self._counted(items)

    def _counted(self, items):
        self._is_finished = False
        for item in items:
            self._num_yielded += 1
            yield item
        self._is_finished = True

    def state_dict(self):
        return {"_num_yielded": self._num_yielded, "_iterator_finished": self._is_finished}

    def load_state_dict(self, state):
        self._start = 0 if state["_iterator_finished"] else state["_num_yielded"]


STREAMS: dict[str, Any] = {"plain": Numbers, "stateful": Stateful, "stateful set": StatefulSet}


def own(worker, lengths=LENGTHS, kind="plain"):
    """Return the stream of a worker, with samples of its own."""
    return STREAMS[kind](1000 * worker, lengths[worker])


def expected(worker, lengths=LENGTHS):
    return list(range(1000 * worker, 1000 * worker + lengths[worker]))


def wrapped(balancer, source, lengths=LENGTHS):
    """Return the stream of this worker in the form that a script may have it in."""
    stream = own(balancer.worker, lengths)
    if source == "generator":
        return iter(list(stream))
    if source == "batches":
        return DataLoader(stream, TOTAL // 2)
    if source == "batches of processes":
        return DataLoader(stream, TOTAL // 2, num_workers=2)
    if source == "samples":
        return DataLoader(stream, batch_size=None)
    if source == "stateful loader":
        return StatefulLoader(stream, TOTAL // 2)
    return stream


def epochs_of(source="plain", num_epochs=2, lengths=LENGTHS, table=TABLE, **options):
    with balanced(TOTAL, policy=cycle(*table), warm_up=0) as balancer:
        loader = balancer.loader(wrapped(balancer, source, lengths), **options)
        passes = [visited(balancer, loader) for _ in range(num_epochs)]
        return passes, loader.left


def joined_sizes(results, epoch=0):
    """Return the sizes of all workers in each iteration of an epoch."""
    return [tuple(map(len, parts)) for parts in zip(*(r[0][epoch] for r in results), strict=True)]


SOURCES = ["plain", "batches", "batches of processes", "samples", "stateful loader"]


@pytest.mark.parametrize("source", SOURCES)
def test_every_sample_of_every_stream_is_used_once_in_each_epoch(workers, source):
    results = workers.run(epochs_of, source=source)
    for worker, (passes, _) in enumerate(results):
        for batches in passes:
            used = list(itertools.chain(*batches))
            if source == "batches of processes":
                used.sort()
            assert used == expected(worker)
    sizes = joined_sizes(results)
    # The plan holds until a stream ends; from there on the other carries the total.
    assert sizes[:5] == list(TABLE)
    assert [sum(each) for each in sizes] == [TOTAL] * (sum(LENGTHS) // TOTAL)
    dry = sizes.index((0, TOTAL))
    assert dry < len(sizes) - 3
    assert all(each == (0, TOTAL) for each in sizes[dry:])


def test_loading_processes_share_the_stream(workers):
    results = workers.run(epochs_of, num_workers=2, persistent_workers=True)
    for worker, (passes, _) in enumerate(results):
        for batches in passes:
            assert sorted(itertools.chain(*batches)) == expected(worker)


def test_iterator_is_used_up_by_one_epoch_and_empty_in_the_next(workers):
    for worker, (passes, _) in enumerate(workers.run(epochs_of, source="generator")):
        assert list(itertools.chain(*passes[0])) == expected(worker)
        assert passes[1] == []


@pytest.mark.parametrize("lengths", [(1, 50), (50, 1), (24, 24), (12, 1)])
def test_streams_of_any_length_come_to_their_end(workers, lengths):
    results = workers.run(epochs_of, lengths=lengths)
    for worker, (passes, _) in enumerate(results):
        for batches in passes:
            assert list(itertools.chain(*batches)) == expected(worker, lengths)


def test_three_workers_carry_the_total_until_all_are_dry(workers):
    lengths, table = (20, 31, 64), ((2, 4, 6), (6, 5, 1), (4, 4, 4))
    results = workers.run(epochs_of, count=3, lengths=lengths, table=table)
    for worker, (passes, _) in enumerate(results):
        assert list(itertools.chain(*passes[1])) == expected(worker, lengths)
    sums = [sum(each) for each in joined_sizes(results)]
    assert sums == [TOTAL] * 9 + [115 - 9 * TOTAL]


def in_two_parts():
    """Leave an epoch after three iterations, and use the rest in the next one."""
    with balanced(TOTAL, policy=cycle(*TABLE), warm_up=0) as balancer:
        loader = balancer.loader(wrapped(balancer, "generator"))
        used: list[int] = []
        for indices, _ in itertools.islice(loader, 3):
            used += indices.tolist()
            exchange(balancer)
        return used, list(itertools.chain(*visited(balancer, loader)))


def test_iterator_continues_in_the_next_epoch_with_the_samples_read_ahead(workers):
    for worker, (first, second) in enumerate(workers.run(in_two_parts)):
        assert len(first) == 19 - worker * 2
        assert first + second == expected(worker)


def ended_early():
    messages: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("evenstep.pytorch.stream_loader")
    logger.addHandler(handler)
    try:
        return epochs_of(stop="first"), messages
    finally:
        logger.removeHandler(handler)


def test_epoch_ends_with_the_first_stream_and_says_what_is_left(workers):
    results = workers.run(ended_early)
    left = [found for (_, found), _ in results]
    assert left[0] == left[1]
    assert left[0][0] == 0 and left[0][1] > 0
    for (passes, _), _ in results:
        assert len(passes) == 2
    for epoch in range(2):
        first, second = (passes[epoch] for (passes, _), _ in results)
        assert len(first) == len(second)
        assert list(itertools.chain(*first)) == expected(0)
        used = list(itertools.chain(*second))
        assert used == expected(1)[: len(used)]
        assert len(used) <= 95 - left[0][1]
    # Once, by worker 0.
    assert [len(messages) for _, messages in results] == [1, 0]
    assert "samples left unused: at least " in results[0][1][0]


def gradients_of(buckets, mode):
    """Return the gradient and the samples of each iteration, with the sizes recorded."""
    model = DistributedDataParallel(net(torch.float64), bucket_cap_mb=0.0001 if buckets else 25)
    balancer = Balancer(model, TOTAL, policy=cycle(*TABLE), summary=False, warm_up=0)
    first = [0, LENGTHS[0]][balancer.worker]
    rows = data(sum(LENGTHS), torch.float64)
    samples = [(*rows[i], i) for i in range(first, first + LENGTHS[balancer.worker])]
    loader = balancer.loader(itertools.chain(samples))
    found = []
    for inputs, labels, indices in loader:
        model.zero_grad()
        loss = cross_entropy(model(inputs), labels)
        if mode == "weighed":
            balancer.weigh(loss, len(labels)).backward()
        else:
            loss.backward()
        own_samples = balancer._loop.now.batch.samples
        assert own_samples in (0, len(labels))
        found.append((gradients(model), indices.tolist() if own_samples else []))
    balancer.close()
    return found


@pytest.mark.parametrize("mode", ["plain", "weighed"])
@pytest.mark.parametrize("buckets", [False, True])
def test_gradient_is_that_of_the_joined_batch_also_where_a_stream_ends(workers, buckets, mode):
    one, other = workers.run(gradients_of, buckets=buckets, mode=mode)
    rows = data(sum(LENGTHS), torch.float64)
    partly = 0
    for (gradient, mine), (same, theirs) in zip(one, other, strict=True):
        model = net(torch.float64)
        samples, labels = rows[mine + theirs]
        cross_entropy(model(samples), labels).backward()
        assert distance(gradient, gradients(model)) <= 1e-12
        assert distance(same, gradients(model)) <= 1e-12
        partly += not mine
    assert partly >= 3


def resumed(kind, source, at, num_workers=0):
    """Train for some iterations, and continue in another loader from the checkpoint."""
    with balanced(TOTAL, policy=cycle(*TABLE), warm_up=0) as balancer:
        options = {"num_workers": num_workers} if num_workers else {}

        def make():
            stream = own(balancer.worker, kind=kind)
            made = StatefulLoader(stream, TOTAL // 2) if source == "loader" else stream
            return stream, balancer.loader(made, **options)

        _, loader = make()
        before: list[int] = []
        state: dict[str, Any] = {}
        for k, (indices, _) in enumerate(loader):
            before += indices.tolist() if balancer._loop.samples else []
            exchange(balancer)
            if k + 1 == at:
                state = loader.state_dict()
                break
        stream, again = make()
        again.load_state_dict(state)
        assert again.state_dict() == state
        after = list(itertools.chain(*visited(balancer, again)))
        num_read = getattr(stream, "num_read", None)
        following = list(itertools.chain(*visited(balancer, again)))
        return before, after, following, len(state["buffered"]), num_read


@pytest.mark.parametrize("at", [1, 4, 8, 10])
@pytest.mark.parametrize(
    ("kind", "source"),
    [
        ("plain", "stream"),
        ("stateful", "stream"),
        ("stateful set", "stream"),
        ("plain", "loader"),
    ],
)
def test_checkpoint_in_mid_epoch_continues_with_the_next_sample(workers, kind, source, at):
    for worker, result in enumerate(workers.run(resumed, kind=kind, source=source, at=at)):
        before, after, following, num_buffered, num_read = result
        assert before + after == expected(worker)
        assert following == expected(worker)
        if kind != "plain":
            # Nothing is read twice: the buffered samples are in the checkpoint.
            assert num_read == len(after) - num_buffered


def test_checkpoint_continues_what_loading_processes_read(workers):
    for worker, result in enumerate(
        workers.run(resumed, kind="plain", source="stream", at=4, num_workers=2)
    ):
        before, after, following, _, _ = result
        assert sorted(before + after) == expected(worker)
        assert sorted(following) == expected(worker)


def loaded(**changes):
    with balanced(TOTAL) as balancer:
        loader = balancer.loader(own(balancer.worker))
        for _ in loader:
            exchange(balancer)
            break
        loader.load_state_dict(sealed({**loader.state_dict(), **changes}))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"workers": 3}, "workers must be that of the checkpoint, 3, got 2"),
        ({"workers": 9, "worker": 7}, "worker must be that of the checkpoint, 7, got "),
        ({"loading": "by 2 loading processes"}, "samples must be read as at the checkpoint"),
    ],
)
def test_checkpoint_of_another_kind_is_refused(workers, changes, message):
    for failure in workers.failures(loaded, **changes):
        assert failure.kind == "InvalidSetting"
        assert message in failure.message


def gone_back():
    with balanced(TOTAL) as balancer:
        loader = balancer.loader(wrapped(balancer, "generator"))
        state = loader.state_dict()
        for _ in loader:
            exchange(balancer)
            break
        loader.load_state_dict(state)


def test_iterator_cannot_go_back(workers):
    for failure in workers.failures(gone_back):
        assert failure.kind == "InvalidSetting"
        assert "before an iterator is read, as it cannot go back, got one after" in failure.message


def empty(lengths, batch_norm=False):
    with balanced(TOTAL, net(batch_norm=batch_norm)) as balancer:
        return visited(balancer, balancer.loader(own(balancer.worker, lengths)))


@pytest.mark.parametrize(("lengths", "batch_norm"), [((30, 0), False), ((30, 1), True)])
def test_stream_without_samples_is_an_error_on_all_workers(workers, lengths, batch_norm):
    for failure in workers.failures(empty, lengths=lengths, batch_norm=batch_norm, timeout=30):
        assert failure.kind == "InvalidSetting"
        assert f"at least {1 + batch_norm} samples" in failure.message
        assert f"got {lengths[1]} on worker 1" in failure.message


def test_epoch_without_any_samples_is_empty(workers):
    assert workers.run(empty, lengths=(0, 0), timeout=30) == [[], []]


def left_early(at):
    """Leave each epoch early on all workers; return the first samples of each epoch."""
    with balanced(TOTAL, policy=cycle(*TABLE), warm_up=0) as balancer:
        stream = own(balancer.worker)
        loader = balancer.loader(stream)
        begun = []
        for _ in range(3):
            for k, (indices, _) in enumerate(loader):
                if k == 0:
                    begun.append(indices.tolist()[0])
                if k == at:
                    break
                exchange(balancer)
        return begun, stream.num_begun, loader.state_dict()["epoch"]


def test_loop_that_is_left_early_begins_the_stream_again(workers):
    for worker, (begun, num_begun, epoch) in enumerate(workers.run(left_early, at=2)):
        assert (begun, num_begun, epoch) == ([1000 * worker] * 3, 3, 2)


def test_samples_of_a_batch_that_is_only_looked_at_are_handed_back(workers):
    for worker, (begun, num_begun, epoch) in enumerate(workers.run(left_early, at=0)):
        assert (begun, num_begun, epoch) == ([1000 * worker] * 3, 1, 0)


class ByEpoch(Numbers):
    """A stream whose samples depend on the epoch."""

    def set_epoch(self, epoch):
        self._range = range(10000 * epoch, 10000 * epoch + 20)


def by_epoch(num_workers):
    with balanced(TOTAL, warm_up=0) as balancer:
        stream = DataLoader(ByEpoch(0, 1), TOTAL // 2, num_workers=num_workers)
        loader = balancer.loader(stream)
        found = [visited(balancer, loader) for _ in range(2)]
        loader.set_epoch(7)
        found.append(visited(balancer, loader))
        return [min(itertools.chain(*batches)) for batches in found]


@pytest.mark.parametrize("num_workers", [0, 1])
def test_set_epoch_of_a_stream_is_called_with_each_epoch(workers, num_workers):
    assert workers.run(by_epoch, num_workers=num_workers) == [[0, 10000, 70000]] * 2


def normalised(lengths):
    with balanced(
        TOTAL, net(batch_norm=True), policy=cycle((5, 7), (9, 3), (2, 10)), warm_up=0
    ) as balancer:
        return visited(balancer, balancer.loader(own(balancer.worker, lengths)))


@pytest.mark.parametrize("lengths", [(37, 95), (38, 95), (2, 3), (23, 4)])
def test_no_batch_is_too_small_for_batch_norm(workers, lengths):
    for worker, batches in enumerate(workers.run(normalised, lengths=lengths)):
        assert list(itertools.chain(*batches)) == expected(worker, lengths)
        assert 1 not in map(len, batches)


class Silent:
    """Another user of the extra column."""

    def say(self) -> float:
        return 0.0

    def hear(self, numbers: Any) -> None:
        pass

    def close(self) -> None:
        pass


def counted_exchanges(is_taken=False):
    """Count the exchanges that an epoch adds to those of the gradients."""
    with balanced(TOTAL, policy=cycle((5, 7), (6, 6)), warm_up=0) as balancer:
        if is_taken:
            assert balancer._loop.column is not None
            balancer._loop.column.take(Silent())
        loader = balancer.loader(own(balancer.worker, (500, 700)))
        everybody, calls = loader._supply._collective.everybody, []

        def noted(row):
            calls.append(balancer.iteration)
            return everybody(row)

        loader._supply._collective.everybody = noted
        batches = visited(balancer, loader)
        assert list(itertools.chain(*batches)) == expected(balancer.worker, (500, 700))
        return len(calls), len(batches)


def test_samples_are_announced_with_the_gradients(workers):
    for num_exchanges, num_iterations in workers.run(counted_exchanges):
        assert num_iterations == 100
        # At the beginning, where a stream ends, and at the end, for the buffers.
        assert num_exchanges <= 4


def test_streams_are_exact_where_gradients_cannot_carry_the_numbers(workers):
    for num_exchanges, num_iterations in workers.run(counted_exchanges, is_taken=True):
        assert num_iterations == 100
        # After every second or third batch, as two are read ahead and sizes vary by one.
        assert 30 <= num_exchanges <= 60


def of_sharded_model():
    """Return the gradient and the samples of each iteration of a model with `fully_shard`."""
    with sharded(TOTAL, net(torch.float64), shares=[5, 7]) as (balancer, model):
        rows = data(70, torch.float64)
        mine = range(20) if balancer.worker == 0 else range(20, 70)
        found = []
        for inputs, labels, indices in balancer.loader((*rows[i], i) for i in mine):
            model.zero_grad()
            balancer.weigh(cross_entropy(model(inputs), labels)).backward()
            own_samples = balancer._loop.now.batch.samples
            found.append((whole_gradients(model), indices.tolist() if own_samples else []))
        return found


def test_gradient_of_a_sharded_model_is_that_of_the_joined_batch(workers):
    one, other = workers.run(of_sharded_model)
    rows = data(70, torch.float64)
    assert sorted(itertools.chain(*(mine for _, mine in one + other))) == list(range(70))
    for (gradient, mine), (same, theirs) in zip(one, other, strict=True):
        model = net(torch.float64)
        samples, labels = rows[mine + theirs]
        cross_entropy(model(samples), labels).backward()
        assert distance(gradient, gradients(model)) <= 1e-12
        assert distance(same, gradients(model)) <= 1e-12


def accumulated():
    """Exchange gradients after every third batch only."""
    with balanced(TOTAL, policy=cycle(*TABLE), warm_up=0) as balancer:
        model = model_of(balancer)
        used: list[int] = []
        for k, (indices, _) in enumerate(balancer.loader(own(balancer.worker))):
            used += indices.tolist() if balancer._loop.samples else []
            model.require_backward_grad_sync = k % 3 == 2
            exchange(balancer)
        return used


def test_streams_end_together_where_gradients_are_accumulated(workers):
    for worker, used in enumerate(workers.run(accumulated)):
        assert used == expected(worker)


def fetched_ahead():
    """Ask for the next batch before the gradients of the last one are exchanged."""
    with balanced(TOTAL, policy=cycle(*TABLE), warm_up=0) as balancer:
        used: list[int] = []
        last: Any = None
        for indices, _ in balancer.loader(own(balancer.worker)):
            if last is not None:
                balancer.on(last)
                used += last.tolist() if balancer._loop.samples else []
                exchange(balancer)
            last = indices
        balancer.on(last)
        used += last.tolist() if balancer._loop.samples else []
        return used


def test_streams_end_together_where_batches_are_fetched_ahead(workers):
    for worker, used in enumerate(workers.run(fetched_ahead)):
        assert used == expected(worker)


def two_streams():
    """Read one stream in the middle of another."""
    with balanced(TOTAL, policy=cycle(*TABLE), warm_up=0) as balancer:
        outer = balancer.loader(own(balancer.worker))
        inner = balancer.loader(own(balancer.worker, (20, 30)))
        outer_used: list[int] = []
        inner_used: list[list[int]] = []
        for k, (indices, _) in enumerate(outer):
            outer_used += indices.tolist() if balancer._loop.samples else []
            exchange(balancer)
            if k == 3:
                inner_used = visited(balancer, inner)
        return outer_used, list(itertools.chain(*inner_used))


def test_two_streams_can_be_read_by_turns(workers):
    for worker, (outer, inner) in enumerate(workers.run(two_streams)):
        assert outer == expected(worker)
        assert inner == expected(worker, (20, 30))


def recorded(path):
    with balanced(TOTAL, policy=cycle(*TABLE), warm_up=0, log=path) as balancer:
        return visited(balancer, balancer.loader(own(balancer.worker)))


def test_run_log_has_the_samples_really_processed(workers, tmp_path):
    path = tmp_path / "run.jsonl"
    batches = workers.run(recorded, path=str(path))
    logged = runlog.read(path).matrix("batch_sizes").tolist()
    assert logged == [list(map(len, parts)) for parts in zip(*batches, strict=True)]


def limited():
    with balanced(TOTAL, policy=cycle((6, 6)), maximum=[6, 8], warm_up=0) as balancer:
        return visited(balancer, balancer.loader(own(balancer.worker, (12, 40))))


def test_others_carry_no_more_than_they_can_run(workers):
    first, second = workers.run(limited)
    assert list(map(len, first)) == [6, 6, 0, 0, 0, 0]
    assert list(map(len, second)) == [6, 6, 8, 8, 8, 4]


def refused(options, loader=None):
    with balanced(TOTAL) as balancer:
        stream: Any = own(balancer.worker)
        balancer.loader(stream if loader is None else DataLoader(stream, **loader), **options)


@pytest.mark.parametrize(
    ("options", "loader", "message"),
    [
        ({"stop": "last"}, None, "stop must be one of all, first, got 'last'"),
        ({"ahead": -1}, None, "ahead must be"),
        ({"shuffle": True}, None, "shuffle must be left out for a stream"),
        ({"batch_size": 6}, None, "batch_size must be left out"),
        ({}, {"batch_size": 5}, "divided by the number of workers, 2, got 5"),
        ({}, {"batch_size": 6, "drop_last": True}, "drop_last of a DataLoader over a stream"),
        ({"num_workers": 1}, {"batch_size": None}, "used as it is, got num_workers"),
    ],
)
def test_settings_that_do_not_fit_a_stream_are_refused(workers, options, loader, message):
    for failure in workers.failures(refused, options=options, loader=loader):
        assert failure.kind == "InvalidSetting"
        assert message in failure.message
