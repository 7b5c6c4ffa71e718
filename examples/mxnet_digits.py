"""Train a small Gluon net on drawn digits, on workers that share a parameter server.

On this machine, with two workers: python -m evenstep.mxnet.launch and the name of this file.
The lines that Evenstep takes are marked. With --manager HOST:PORT the plans come from a manager;
without it, the parameter server carries the workers' reports.
"""

import argparse
from typing import Any

import evenstep
import mxnet as mx
import numpy as np
from evenstep.mxnet import Balancer
from mxnet import autograd, gluon

EPOCHS, TOTAL = 3, 64
GLYPHS = """
 ### |  #  | ### | ### | #   |#####| ### |#####| ### | ### |
#   #| ##  |#   #|#   #|#  # |#    |#    |    #|#   #|#   #|
#   #|  #  |   # |  ## |#####|#### |#### |   # | ### | ####|
#   #|  #  |  #  |#   #|   # |    #|#   #|  #  |#   #|    #|
 ### | ### |#####| ### |   # |#### | ### | #   | ### | ### |
"""


def draw_digits(count: int) -> Any:
    """Return pictures of digits of 5 by 5 dots, all noisy, and which digits they are."""
    rows = [line.split("|")[:10] for line in GLYPHS.strip("\n").splitlines()]
    dots = [[[dot == "#" for dot in row[digit]] for row in rows] for digit in range(10)]
    generator = np.random.default_rng(0)
    labels = generator.integers(0, 10, count)
    noise = generator.normal(scale=0.4, size=(count, 1, 5, 5))
    return np.array(dots, dtype=float)[labels][:, None] + noise, labels


def make_net() -> Any:
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Conv2D(16, 3, padding=1, activation="relu"))
    net.add(gluon.nn.Dense(10))
    net.initialize(mx.init.Xavier())
    net.hybridize()
    return net


def connect(manager: str | None, store: Any) -> Any:
    """Return this worker's client of a manager, or None without one."""
    if manager is None:
        return None
    name = f"worker-{store.rank}"
    return evenstep.connect(
        manager, "mxnet-digits", name, workers=store.num_workers, total=TOTAL, policy="proportional"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--manager", metavar="HOST:PORT")
    args = parser.parse_args()
    mx.random.seed(0)
    pictures, labels = draw_digits(2000)
    net, loss_of = make_net(), gluon.loss.SoftmaxCrossEntropyLoss()

    store = mx.kvstore.create("dist_sync")
    client = connect(args.manager, store)
    balancer = Balancer(store, TOTAL, coordinator=client)  # Evenstep
    batches = balancer.iter(pictures.astype(np.float32), labels)  # Evenstep: was NDArrayIter
    trainer = gluon.Trainer(
        net.collect_params(), "sgd", {"learning_rate": 0.2, "momentum": 0.9},
        kvstore=balancer.kvstore,  # Evenstep: was store
    )  # fmt: skip
    for epoch in range(EPOCHS):
        losses = []
        for batch in batches:
            with autograd.record():
                loss = loss_of(net(batch.data[0]), batch.label[0])
            loss.backward()
            balancer.step(trainer)  # Evenstep: was trainer.step(TOTAL)
            losses.append(loss.mean().asscalar())
        if store.rank == 0:
            sizes = "/".join(map(str, balancer.plan.sizes))
            print(f"epoch {epoch}: batch sizes {sizes}, loss {np.mean(losses):.3f}", flush=True)
    balancer.close()
    if client is not None:
        client.leave()
    if store.rank == 0:
        found = net(mx.nd.array(pictures)).asnumpy().argmax(axis=1)
        print(f"accuracy {np.mean(found == labels):.1%} on the samples that it was trained on")


if __name__ == "__main__":
    main()
