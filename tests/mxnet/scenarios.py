"""The trainings of the workers of a real job in the tests, one after the other on one kvstore.

Each scenario returns what JSON can hold.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import mxnet as mx
from mxnet import autograd, gluon

import evenstep
from evenstep.mxnet import Balancer
from tests.mxnet import tasks
from tests.training.timers import SpeedTimer

NUM_ITERATIONS = 50


def swinging(worker):
    """Make a timer of speeds that change all the time, so that batch sizes do."""
    return SpeedTimer(lambda count: (1 + (3 * count + 2 * worker) % 5) / 100)


def make_balancer(store, **settings):
    made = {
        "policy": "proportional",
        "predictor": "memoryless",
        "timer": swinging(store.rank),
        "summary": False,
    }
    return Balancer(store, tasks.TOTAL, **{**made, **settings})


def seen_of(balancer, batch):
    samples = batch.index.tolist()
    return {"samples": samples, "sizes": balancer.plan.sizes.tolist()}


def gluon_training(balancer, num_iterations=NUM_ITERATIONS, mean=False, **how):
    """Train with Gluon, and return the samples seen and the parameters come to."""
    net, loss_of = tasks.make_net(), gluon.loss.SoftmaxCrossEntropyLoss()
    trainer = gluon.Trainer(
        net.collect_params(), "sgd", dict(tasks.OPTIMIZER), kvstore=balancer.kvstore, **how
    )
    batches = balancer.iter(*tasks.make_data(), seed=tasks.SEED, pad=False)
    seen: list[dict[str, list[int]]] = []
    while len(seen) < num_iterations:
        for batch in batches:
            with autograd.record():
                loss = loss_of(net(batch.data[0]), batch.label[0])
                loss = loss.mean() if mean else loss
            loss.backward()
            balancer.step(trainer)
            seen.append(seen_of(balancer, batch))
            if len(seen) == num_iterations:
                break
    return {"seen": seen, "weights": tasks.weights_of(net), "on_store": trainer._update_on_kvstore}


def gluon_on_servers(store, folder):
    """The servers update; plans are the workers' own."""
    message = None
    try:
        make_balancer(store, policy="proportional" if store.rank else "equal_finish")
    except evenstep.EvenstepError as error:
        message = str(error)
    balancer = make_balancer(store, log=str(folder / "run.jsonl"))
    done = gluon_training(balancer)
    done["mean"] = balancer.mean(float(balancer.worker))
    balancer.close()
    return {**done, "disagreement": message, "iteration": balancer.iteration}


def gluon_on_workers(store, address, job, blocking):
    """The servers only sum, and the workers update; plans are a manager's."""
    with evenstep.connect(
        address, job, f"worker-{store.rank}", workers=store.num_workers, total=tasks.TOTAL,
        policy="proportional", predictor="memoryless", blocking=blocking,
    ) as client:  # fmt: skip
        balancer = make_balancer(store, coordinator=client, reduction="mean", predictor=None)
        done = gluon_training(balancer, mean=True, update_on_kvstore=False)
        done["held"] = [held.plan.number for held in client.held]
        done["used"] = balancer.plan.number
        balancer.close()
    return done


def first_steps(store, count):
    """Begin again and again: return the parameters after one iteration of each training."""
    return [
        gluon_training(make_balancer(store), 1, update_on_kvstore=False)["weights"]
        for _ in range(count)
    ]


def module_fit(store):
    """Module.fit, through the balancer."""
    balancer = make_balancer(store)
    module = mx.mod.Module(tasks.make_symbol())
    batches = balancer.iter(*tasks.make_data(), seed=tasks.SEED, pad=False)
    reshapes, seen = [], []
    reshape, next_of = module.reshape, batches.next

    def counted(*shapes):
        reshapes.append(shapes)
        reshape(*shapes)

    def noted():
        batch = next_of()
        seen.append(seen_of(balancer, batch))
        return batch

    module.reshape, batches.next = counted, noted
    given = dict(zip(tasks.NAMES, map(mx.nd.array, tasks.make_weights()), strict=True))
    balancer.fit(
        module, batches, num_epoch=7, optimizer="sgd", optimizer_params=tasks.OPTIMIZER,
        arg_params=given, eval_metric="acc",
    )  # fmt: skip
    trained = module.get_params()[0]
    weights = [trained[name].asnumpy().tolist() for name in tasks.NAMES]
    balancer.close()
    return {"seen": seen, "weights": weights, "reshapes": len(reshapes)}


def sleeping_colleague(store, log, sleep, quiet, **how):
    """Real clocks: after `quiet` iterations, worker 1 sleeps in every one."""
    balancer = make_balancer(store, timer=None, mode="off", log=str(log), warm_up=0)
    net, loss_of = tasks.make_net(), gluon.loss.SoftmaxCrossEntropyLoss()
    trainer = gluon.Trainer(
        net.collect_params(), "sgd", dict(tasks.OPTIMIZER), kvstore=balancer.kvstore, **how
    )
    batches = balancer.iter(*tasks.make_data())
    while balancer.iteration < 2 * quiet:
        for batch in batches:
            with autograd.record():
                loss = loss_of(net(batch.data[0]), batch.label[0])
            if balancer.worker == 1 and balancer.iteration >= quiet:
                time.sleep(sleep)
            loss.backward()
            balancer.step(trainer)
    balancer.close()


def main():
    given = json.loads(sys.argv[1])
    folder, address = Path(given["folder"]), given["address"]
    store = mx.kvstore.create("dist_sync")
    times = given["sleep"], given["quiet"]
    log = folder / "sleep-on-workers.jsonl"
    sleeping_colleague(store, log, *times, update_on_kvstore=False)
    done: dict[str, Any] = {
        "first": first_steps(store, 15),
        # Servers that have once got an optimizer keep it, so those that only sum come first.
        "blocking": gluon_on_workers(store, address, "blocking", True),
        "non-blocking": gluon_on_workers(store, address, "non-blocking", False),
        "servers": gluon_on_servers(store, folder),
        "module": module_fit(store),
    }
    sleeping_colleague(store, folder / "sleep-on-servers.jsonl", *times)
    (folder / f"worker-{store.rank}.json").write_text(json.dumps(done))


if __name__ == "__main__":
    main()
