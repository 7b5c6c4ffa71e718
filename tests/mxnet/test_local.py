"""Tests without a second worker: batches, weights, clocks, refusals, numbers of graphs."""

import itertools
import time

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon

from evenstep.errors import InvalidSetting, OutOfTurn
from evenstep.measure.timer import HostTimer
from evenstep.mxnet import Balancer, DealtIter
from evenstep.mxnet.collective import FIRST_ROWS, RowCarrier, StoreCollective
from evenstep.runlog import read
from evenstep.training.epochs import Epochs
from tests.mxnet import tasks

SIZES = [[8, 8], [4, 12], [11, 5], [16, 0], [1, 15], [8, 8], [7, 9]]


def local(**settings):
    store = mx.kvstore.create("local")
    return Balancer(store, tasks.TOTAL, summary=False, **settings)


def make_trainer(net, balancer, **how):
    return gluon.Trainer(
        net.collect_params(), "sgd", dict(tasks.OPTIMIZER), kvstore=balancer.kvstore, **how
    )


def train(balancer, batches, num_epochs=2, mean=False, **how):
    """Train from pairs of data and labels, and return the net."""
    net, loss_of = tasks.make_net(), gluon.loss.SoftmaxCrossEntropyLoss()
    trainer = make_trainer(net, balancer, **how)
    for _ in range(num_epochs):
        for data, label in batches:
            with autograd.record():
                loss = loss_of(net(data), label)
                loss = loss.mean() if mean else loss
            loss.backward()
            balancer.step(trainer)
    return net


class Pairs:
    """The batches of a DataIter as pairs."""

    def __init__(self, batches):
        self._batches = batches

    def __iter__(self):
        return ((batch.data[0], batch.label[0]) for batch in self._batches)


def test_the_very_next_batch_has_the_size_that_was_set():
    data, label = tasks.make_data()
    both = [
        DealtIter(data, label, total=16, worker=worker, num_workers=2, seed=7, pad=False)
        for worker in range(2)
    ]
    epochs = Epochs(tasks.NUM_SAMPLES, 16, seed=7)
    visited: list[int] = []
    for sizes in SIZES:
        for worker, batches in enumerate(both):
            batches.sizes = sizes
            batch, dealt = next(batches), epochs.deal(np.array(sizes), worker)
            assert dealt is not None and batch.index.tolist() == dealt.samples.tolist()
            assert batch.data[0].shape == (len(dealt.samples), tasks.FEATURES)
            assert batch.provide_data[0].shape == batch.data[0].shape
            np.testing.assert_array_equal(batch.data[0].asnumpy(), data[dealt.samples])
            np.testing.assert_array_equal(batch.label[0].asnumpy(), label[dealt.samples])
            visited += dealt.samples.tolist() if dealt.sizes[worker] else []
        epochs.advance()
    assert sorted(visited) == list(range(tasks.NUM_SAMPLES))
    with pytest.raises(StopIteration):
        next(both[0])


def test_epochs_follow_each_other_with_and_without_reset():
    data, label = tasks.make_data()
    batches = DealtIter(data, label, total=16)
    first = [batch.index.tolist() for batch in batches]
    batches.reset()
    second = [batch.index.tolist() for batch in batches]
    third = [batch.index.tolist() for batch in batches]
    assert [len(first), len(second), len(third)] == [7, 7, 7]
    assert first != second != third != first
    assert batches.epochs.epoch == 2


@pytest.mark.parametrize("sizes", [[8, 9], [16], [17, -1]])
def test_sizes_must_add_up(sizes):
    batches = DealtIter(*tasks.make_data(), total=16, num_workers=2)
    with pytest.raises(InvalidSetting, match="2 workers, at least 0 each, and add up to 16, got"):
        batches.sizes = sizes


@pytest.mark.parametrize("how", [{}, {"update_on_kvstore": False}])
@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_a_worker_alone_trains_as_without_balancer(reduction, how):
    balancer = local(reduction=reduction)
    batches = balancer.iter(*tasks.make_data(), seed=tasks.SEED)
    net = train(balancer, Pairs(batches), mean=reduction == "mean", **how)
    assert balancer.iteration == 14
    for ours, theirs in zip(tasks.weights_of(net), tasks.train_alone(14), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def test_a_loader_gives_the_same_batches_of_a_gluon_data_set():
    balancer = local()
    data = gluon.data.ArrayDataset(*tasks.make_data())
    net = train(balancer, balancer.loader(data, seed=tasks.SEED))
    for ours, theirs in zip(tasks.weights_of(net), tasks.train_alone(14), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def test_a_module_trains_in_a_loop_of_its_own():
    balancer = local()
    batches = balancer.iter(*tasks.make_data(), seed=tasks.SEED)
    module = mx.mod.Module(tasks.make_symbol())
    module.bind(batches.provide_data, batches.provide_label)
    given = dict(zip(tasks.NAMES, map(mx.nd.array, tasks.make_weights()), strict=True))
    module.init_params(arg_params=given)
    module.init_optimizer(balancer.kvstore, "sgd", {**tasks.OPTIMIZER, "rescale_grad": 1 / 16})
    for batch in batches:
        module.forward_backward(batch)
        balancer.update(module)
    trained = module.get_params()[0]
    for name, theirs in zip(tasks.NAMES, tasks.train_alone(7), strict=True):
        np.testing.assert_allclose(trained[name].asnumpy(), theirs, rtol=1e-5, atol=1e-6)


def test_a_hybridized_net_is_traced_once_for_all_sizes():
    traces = []

    class Counting(gluon.nn.Dense):  # type: ignore[misc]  # MXNet is not annotated
        def hybrid_forward(self, F, *arrays, **parameters):
            traces.append(F.__name__)
            return super().hybrid_forward(F, *arrays, **parameters)

    net = Counting(tasks.CLASSES, in_units=tasks.FEATURES)
    net.initialize()
    net.hybridize()
    for size in range(1, 31):
        with autograd.record():
            loss = net(mx.nd.ones((size, tasks.FEATURES))).sum()
        loss.backward()
        expected = np.full(tasks.CLASSES, size)
        np.testing.assert_array_equal(net.bias.grad().asnumpy(), expected)
    assert traces == ["mxnet.symbol"]


def test_own_pulls_and_as_long_a_push_count(tmp_path):
    sleep = 0.01
    store = mx.kvstore.create("local")
    stock = store.pull

    def pull(*given, **named):
        time.sleep(sleep)
        stock(*given, **named)

    store.pull = pull
    clock = itertools.count(start=0.0, step=1e-6).__next__
    log = str(tmp_path / "run.jsonl")
    balancer = Balancer(store, 16, summary=False, log=log, warm_up=0, timer=HostTimer(clock))
    train(balancer, Pairs(balancer.iter(*tasks.make_data())))
    balancer.close()
    (part,) = read(log).segments
    # Four parameters; nothing was pulled before the first iteration, which computes in no time.
    assert part.times[0, 0] < sleep
    assert np.all(part.times[1:, 0] > 2 * 4 * sleep)


def test_a_checkpoint_is_taken_up_again():
    balancer = local(name="here")
    train(balancer, Pairs(balancer.iter(*tasks.make_data())))
    fresh = local(name="here")
    fresh.load_state_dict(balancer.state_dict())
    assert fresh.iteration == 14 and fresh.newest_plan.sizes.tolist() == [16]
    assert fresh.summary().startswith("evenstep: ")


def indices_of(batches):
    return (batch.index.tolist() for batch in batches)


def labels_of(batches):
    return (label.asnumpy().tolist() for _, label in batches)


@pytest.mark.parametrize("kind", ["iter", "loader"])
def test_an_epoch_goes_on_where_a_checkpoint_was_made(kind):
    def begin():
        balancer, arrays = local(), tasks.make_data()
        if kind == "iter":
            batches = balancer.iter(*arrays, seed=5)
            return batches, indices_of(batches)
        batches = balancer.loader(gluon.data.ArrayDataset(*arrays), seed=5)
        return batches, labels_of(batches)

    (ours, left), (theirs, taken_up) = begin(), begin()
    for _ in range(3):
        next(left)
    theirs.load_state_dict(ours.state_dict())
    rest = list(left)
    assert len(rest) == 4 and list(taken_up) == rest
    theirs.set_epoch(7)
    assert theirs.state_dict()["epoch"] == 7


def test_a_store_has_one_training_after_the_other():
    store = mx.kvstore.create("local")
    for _ in range(2):
        balancer = Balancer(store, 16, summary=False)
        net = train(balancer, Pairs(balancer.iter(*tasks.make_data(), seed=tasks.SEED)))
        for ours, theirs in zip(tasks.weights_of(net), tasks.train_alone(14), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def test_a_store_that_has_an_optimizer_keeps_it():
    store = mx.kvstore.create("local")
    for how, refused in (({}, False), ({"update_on_kvstore": False}, True)):
        balancer = Balancer(store, 16, summary=False)
        batches = Pairs(balancer.iter(*tasks.make_data()))
        if refused:
            with pytest.raises(InvalidSetting, match=r"update_on_kvstore must be True\b"):
                train(balancer, batches, **how)
        else:
            train(balancer, batches, **how)


def test_workers_tell_each_other_numbers_to_the_bit():
    collective = StoreCollective(mx.kvstore.create("local"))
    row = np.array([np.pi, -1e-300, 2.0**60 + 2**10, np.inf, 0.0])
    assert collective.everybody(row).tolist() == [row.tolist()]


def test_servers_leave_rows_as_they_are_and_know_parameters_by_their_order():
    carrier = RowCarrier(mx.optimizer.SGD(learning_rate=0.5, param_idx2name={3: "bias"}), first=20)
    carrier.optimizer.set_lr_mult({"bias": 10})
    rows, weight = mx.nd.zeros(2), mx.nd.zeros(2)
    carrier.update_multi_precision(FIRST_ROWS, rows, mx.nd.array([1, 2]), None)
    carrier.update_multi_precision(23, weight, mx.nd.array([1, 2]), None)
    assert rows.asnumpy().tolist() == [1, 2]
    assert weight.asnumpy().tolist() == [-5, -10]


def test_what_a_worker_without_samples_pushes_is_nothing():
    balancer = local()
    store = balancer.kvstore
    store.init(0, mx.nd.ones(2))
    store.open(0.0)
    store.push(0, mx.nd.array([np.nan, 1]))
    store.close()
    out = mx.nd.empty(2)
    store.pull(0, out=out)
    assert out.asnumpy().tolist() == [0, 0]


def test_what_would_train_on_something_else_is_refused():
    balancer = local()
    net = tasks.make_net()
    with pytest.raises(OutOfTurn, match=r"balancer.step\(trainer\).*got a push of key 0 outside"):
        with autograd.record():
            loss = net(mx.nd.ones((1, tasks.FEATURES))).sum()
        loss.backward()
        make_trainer(net, balancer).step(16)
    with pytest.raises(InvalidSetting, match=r"kvstore=balancer.kvstore, got device"):
        balancer.step(gluon.Trainer(net.collect_params(), "sgd"))
    with pytest.raises(InvalidSetting, match=r"one Trainer or Module.*got key 0 again"):
        balancer.step(make_trainer(tasks.make_net(), balancer))
    with pytest.raises(InvalidSetting, match=r"compression must be off.*got {'type': '2bit'}"):
        balancer.kvstore.set_gradient_compression({"type": "2bit"})
    with pytest.raises(InvalidSetting, match="must be below 100000, got 100000"):
        balancer.kvstore.init(FIRST_ROWS, mx.nd.ones(1))
    with pytest.raises(InvalidSetting, match=r"reduction .*sum, mean, got 'max'"):
        local(reduction="max")
    # What only an adapter may say to the loop is no setting of a balancer.
    with pytest.raises(InvalidSetting, match="got 'straggler'"):
        local(straggler="bench")
    with pytest.raises(InvalidSetting, match=r"mx\.kvstore\.create.* got WeightedStore"):
        Balancer(balancer.kvstore, 16)
    with pytest.raises(InvalidSetting, match=r"as many samples, got {'data': 3, 'softmax_label'"):
        balancer.iter(np.ones((3, 2)), np.ones(4))


def test_a_module_must_divide_by_the_total():
    balancer = local()
    batches = balancer.iter(*tasks.make_data())
    module = mx.mod.Module(tasks.make_symbol())
    module.bind(batches.provide_data, batches.provide_label)
    module.init_params()
    module.init_optimizer(balancer.kvstore, optimizer_params={"rescale_grad": 1 / 32})
    with pytest.raises(InvalidSetting, match=r"rescale_grad .* must be 1 / 16, got 0.03125"):
        balancer.update(module)
    module.init_optimizer("local", force_init=True)
    with pytest.raises(InvalidSetting, match=r"init_optimizer.kvstore=balancer.kvstore., got None"):
        balancer.update(module)
