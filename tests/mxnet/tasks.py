"""A small task in MXNet: data, a net, and training it in a single process."""

from __future__ import annotations

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon

from evenstep.training.epochs import Epochs

TOTAL, NUM_SAMPLES, SEED = 16, 103, 7
FEATURES, CLASSES = 6, 3
LEARNING_RATE, MOMENTUM = 0.2, 0.9
OPTIMIZER = {"learning_rate": LEARNING_RATE, "momentum": MOMENTUM}


def make_data():
    random = np.random.default_rng(SEED)
    data = random.normal(size=(NUM_SAMPLES, FEATURES)).astype(np.float32)
    return data, random.integers(0, CLASSES, NUM_SAMPLES).astype(np.float32)


def make_weights():
    """Weights and biases of two layers, the same everywhere."""
    random = np.random.default_rng(SEED + 1)
    shapes = [(8, FEATURES), (8,), (CLASSES, 8), (CLASSES,)]
    return [random.normal(scale=0.5, size=shape).astype(np.float32) for shape in shapes]


def make_net(hybrid=True):
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Dense(8, activation="tanh", in_units=FEATURES))
    net.add(gluon.nn.Dense(CLASSES, in_units=8))
    net.initialize()
    for parameter, value in zip(net.collect_params().values(), make_weights(), strict=True):
        parameter.set_data(mx.nd.array(value))
    if hybrid:
        net.hybridize()
    return net


def weights_of(net):
    return [parameter.data().asnumpy().tolist() for parameter in net.collect_params().values()]


def make_symbol():
    data = mx.sym.Variable("data")
    hidden = mx.sym.Activation(
        mx.sym.FullyConnected(data, num_hidden=8, name="first"), act_type="tanh"
    )
    scores = mx.sym.FullyConnected(hidden, num_hidden=CLASSES, name="second")
    return mx.sym.SoftmaxOutput(scores, name="softmax")


NAMES = ["first_weight", "first_bias", "second_weight", "second_bias"]


def train_alone(num_iterations):
    """Return the parameters of a single process that gets each iteration's samples at once."""
    data, label = make_data()
    net, loss_of = make_net(), gluon.loss.SoftmaxCrossEntropyLoss()
    trainer = gluon.Trainer(net.collect_params(), "sgd", dict(OPTIMIZER), kvstore=None)
    epochs = Epochs(NUM_SAMPLES, TOTAL, seed=SEED)
    for _ in range(num_iterations):
        dealt = epochs.deal(np.array([TOTAL]), 0)
        if dealt is None:
            epochs.end()
            dealt = epochs.deal(np.array([TOTAL]), 0)
        assert dealt is not None
        epochs.advance()
        samples = dealt.samples
        with autograd.record():
            loss = loss_of(net(mx.nd.array(data[samples])), mx.nd.array(label[samples]))
        loss.backward()
        trainer.step(len(samples))
    return weights_of(net)
