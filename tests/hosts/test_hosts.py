"""Training on two hosts, with a manager on a third: links are cut in mid-run, and come back."""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, DistributedSampler

from evenstep.partitions import create_partitions
from evenstep.partitions.store import Partition, verify
from evenstep.runlog import read
from tests.hosts.cluster import NAMES, Cluster
from tests.hosts.job import CERTIFICATE, KEY, NUM_SAMPLES, SIZES, TOKEN, TOTAL
from tests.hosts.network import SWITCHED, limit
from tests.pytorch.setup import FEATURES, data, distance, net, parameters
from tests.pytorch_partitions.partitions import one_by_one

pytestmark = [pytest.mark.hosts, pytest.mark.distributed, pytest.mark.timeout(300)]

TOLERANCE = 1e-10
WORKERS = ("a0", "b0")
"""The first worker of each host."""


def trained(batches: Iterator[tuple[torch.Tensor, torch.Tensor]]) -> torch.Tensor:
    """Return the parameters after these batches, in plain torch and one process."""
    model = net(torch.float64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for x, y in batches:
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    return parameters(model)


def stock_batches() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield the batches that two workers of a stock script have together."""
    samples = data(NUM_SAMPLES, torch.float64)
    dealers: list[Any] = [DistributedSampler(samples, 2, worker) for worker in range(2)]
    for epoch in itertools.count():
        for dealer in dealers:
            dealer.set_epoch(epoch)
        loaders = [DataLoader(samples, TOTAL // 2, sampler=dealer) for dealer in dealers]
        for (x, y), (more, labels) in zip(*loaders, strict=True):
            yield torch.cat([x, more]), torch.cat([y, labels])


def stock(iterations: int) -> torch.Tensor:
    return trained(itertools.islice(stock_batches(), iterations))


def iterations_without_manager(cluster: Cluster) -> slice:
    """Wait until workers have lost the manager, and return which iterations they ran since."""
    cluster.until(lambda: not cluster.notes("b0")[-1]["connected"], "the loss of the manager")
    begun = len(cluster.notes("a0"))
    cluster.until(lambda: len(cluster.notes("a0")) > begun + 20, "training without a manager")
    return slice(begun, len(cluster.notes("a0")))


def until_newer_plan(cluster: Cluster) -> None:
    kept = cluster.notes("a0")[-1]["plan"]
    cluster.until_noted(lambda note: note["plan"] > kept, "a plan after the manager is back")


def test_training_continues_with_the_last_plan_while_the_manager_is_cut_off(cluster):
    folder = cluster.folder
    cluster.start(
        "m", sys.executable, "-m", "evenstep", "manager", "--listen=m:7411", "--http=off",
        f"--token-file={folder / TOKEN}", f"--tls-cert={folder / CERTIFICATE}",
        f"--tls-key={folder / KEY}",
    )  # fmt: skip
    agents = [cluster.torchrun(name, "planned", "--nnodes=2", workers=2) for name in NAMES]
    cluster.until_noted(lambda note: note["plan"] > 3, "a plan of the manager")

    cluster.network.cut("m")
    outages = [iterations_without_manager(cluster)]
    cluster.network.join("m")
    until_newer_plan(cluster)
    # Only the workers of one host lose the manager.
    to_manager = ("blackhole", f"{SWITCHED}.3/32")
    cluster.hosts["b"].run("ip", "route", "add", *to_manager)
    outages.append(iterations_without_manager(cluster))
    cluster.hosts["b"].run("ip", "route", "del", *to_manager)
    until_newer_plan(cluster)

    (folder / "stop").touch()
    assert [cluster.ends(agent) for agent in agents] == [0, 0], cluster.out()
    workers = ("a0", "a1", "b0", "b1")
    notes = {name: cluster.notes(name) for name in workers}
    used = [[(n["iteration"], n["sizes"], n["plan"]) for n in notes[name]] for name in workers]
    assert used == [used[0]] * len(workers)
    assert [len({note["plan"] for note in notes["a0"][part]}) for part in outages] == [1, 1]
    # The sizes were unequal, and changed.
    assert len({tuple(note["sizes"]) for note in notes["a0"] if len(set(note["sizes"])) > 1}) > 2
    expected = stock(len(notes["a0"]))
    for name in workers:
        assert distance(cluster.parameters(name), expected) <= TOLERANCE


HELD, ROW = (32, 32), 4096
"""Samples of each partition, and numbers of a row: 16 rows have 512 KiB."""


def make_partitions(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Make a partition for each host, and return rows and labels of all samples."""
    drawn = np.random.default_rng(5)
    rows, labels = drawn.standard_normal((sum(HELD), ROW)), drawn.integers(0, 3, sum(HELD))
    dealt = np.split(np.arange(sum(HELD)), np.cumsum(HELD)[:-1])
    folders = [folder / name for name in NAMES]
    create_partitions(folders, (rows, labels, np.arange(sum(HELD))), dealt, label="1")
    return rows, labels


def test_samples_migrate_between_hosts_also_after_their_link_was_cut_in_the_middle(cluster):
    folders = [cluster.folder / name for name in NAMES]
    rows, labels = make_partitions(cluster.folder)
    for name in NAMES:
        limit(cluster.hosts[name], "eth1", "2mbit")
    agents = [cluster.torchrun(name, "partitioned", "--nnodes=2") for name in NAMES]
    cluster.until(
        lambda: any(Partition.open(one).index.open_hand_overs for one in folders), "a migration"
    )
    cluster.hosts["a"].run("ip", "link", "set", "dev", "eth1", "down")
    begun = len(cluster.notes("a0"))
    cluster.until_noted(lambda note: note["migrations"] > 1, "another attempt")
    cut = cluster.notes("a0")[begun:]
    cluster.hosts["a"].run("ip", "link", "set", "dev", "eth1", "up")
    at = cluster.until_noted(lambda note: note["partitions"] != [*HELD], "a migration")
    cluster.until(lambda: len(cluster.notes("a0")) > at + 20, "training afterwards")
    (cluster.folder / "stop").touch()
    assert [cluster.ends(agent) for agent in agents] == [0, 0], cluster.out()

    notes = [cluster.notes(name) for name in WORKERS]
    shared = ("iteration", "sizes", "partitions", "migrations")
    assert [[n[k] for k in shared] for n in notes[0]] == [[n[k] for k in shared] for n in notes[1]]
    # Training continued with the old partitions while the link was down.
    assert len(cut) > 20 and all(note["partitions"] == [*HELD] for note in cut)
    report = verify(folders)
    assert (report.problems, report.open_hand_overs) == ((), ())
    assert sum(note["partitions"][1] > HELD[1] for note in notes[0]) > 20
    begins, ends, *_ = [
        event.text or "" for event in read(cluster.folder / "run.jsonl").events_of("note")
    ]
    assert "migration 1 begins" in begins
    assert "migration 1 ends: 0 samples moved" in ends
    # Each sample was used once in each traversal, also around the change, ...
    change = next(k for k, note in enumerate(notes[0]) if note["partitions"] != [*HELD])
    for worker, taken in enumerate(notes):
        for part in (taken[:change], taken[change:]):
            numbers = [number for note in part for number in note["samples"]]
            assert one_by_one(numbers, part[0]["partitions"][worker])
    # ... and the parameters are those of one process with the same batches.
    both = [first["samples"] + second["samples"] for first, second in zip(*notes, strict=True)]
    assert {tuple(note["sizes"]) for note in notes[0]} == set(SIZES)
    x, y = torch.tensor(rows[:, :FEATURES]), torch.tensor(labels)
    expected = trained((x[numbers], y[numbers]) for numbers in both)
    for name in WORKERS:
        assert distance(cluster.parameters(name), expected) <= TOLERANCE


CONF = "--rdzv-conf=last_call_timeout=2,read_timeout=10,keep_alive_interval=1"
TIMEOUT = 10.0
"""Seconds that an exchange may take, in the tests that cut it off."""


def test_a_host_that_is_cut_off_is_left_behind_and_taken_back_from_the_checkpoint(cluster):
    def with_workers(count: int) -> Callable[[dict[str, Any]], bool]:
        return lambda note: len(note["sizes"]) == count

    elastic = ("elastic", "--nnodes=1:2", "--max-restarts=3", CONF)
    agents = [cluster.torchrun(name, *elastic, timeout=TIMEOUT) for name in NAMES]
    cluster.until_noted(lambda note: with_workers(2)(note) and note["iteration"] > 7, "training")
    # A link that comes back soon costs nothing but time.
    cluster.network.cut("b")
    time.sleep(1.0)
    cluster.network.join("b")
    cluster.until_noted(lambda note: note["iteration"] > 30, "training after a short cut")
    once = [note["iteration"] for note in cluster.notes("a0")]
    assert once == list(range(len(once)))
    cluster.network.cut("b")
    cluster.until_noted(with_workers(1), "training of the host that is left")
    cluster.network.join("b")
    at = cluster.until_noted(with_workers(2), "training on both hosts again")
    cluster.until(lambda: len(cluster.notes("a0")) > at + 20, "more of it")
    (cluster.folder / "stop").touch()
    assert [cluster.ends(agent) for agent in agents] == [0, 0], cluster.out()
    iterations = [note["iteration"] for note in cluster.notes("a0")]
    assert sorted(set(iterations)) == list(range(iterations[-1] + 1))
    expected = stock(iterations[-1] + 1)
    for name in WORKERS:
        assert distance(cluster.parameters(name), expected) <= TOLERANCE


def test_without_restarts_a_cut_link_ends_the_training_with_an_error_on_both_hosts(cluster):
    for name in NAMES:
        # Otherwise torchrun itself waits a quarter of an hour for the rendezvous.
        cluster.hosts[name].run("sh", "-c", "echo 5 > /proc/sys/net/ipv4/tcp_retries2")
    agents = [
        cluster.torchrun(name, "elastic", "--nnodes=2", CONF, timeout=TIMEOUT) for name in NAMES
    ]
    cluster.until_noted(lambda note: note["iteration"] > 7, "training")
    cluster.network.cut("b")
    assert all(cluster.ends(agent) != 0 for agent in agents)
    assert not list(cluster.folder.glob("parameters-*"))
    # All that was saved is whole.
    saved = torch.load(cluster.folder / "checkpoint")
    model = net(torch.float64)
    model.load_state_dict({k.removeprefix("module."): v for k, v in saved["model"].items()})
    done = int(saved["balancer"]["iteration"])
    assert distance(parameters(model), stock(done)) <= TOLERANCE
    for name in NAMES:
        assert len(cluster.notes(f"{name}0")) >= done
        assert "Timed out waiting" in (cluster.folder / f"out-{name}").read_text()
