"""Agents over a network that loses, repeats and reorders, while they are restarted at random."""

import random
from contextlib import ExitStack

import pytest

from evenstep.partitions.handover import task
from evenstep.partitions.handover.protocol import MANAGER, Begin, Commit, Envelope
from evenstep.partitions.handover.task import Task
from evenstep.partitions.store import Agent, Partition, carry_out, verify
from tests.partitions.store.folders import content, three_partitions


class Network:
    """Three agents and a manager; messages wait in a bag until one is drawn."""

    def __init__(self, folders, tasks, rng, stack):
        self.folders = {folder.name: folder for folder in folders}
        self.tasks = {one.hand_over: one for one in tasks}
        self.rng, self.stack = rng, stack
        self.bag: list[Envelope] = []
        self.agents = {name: self.start(name) for name in self.folders}

    def start(self, name):
        partition = Partition.open(self.folders[name], write=True)
        self.stack.callback(partition.close)
        return Agent(partition)

    def restart(self, name):
        """Lose everything that is not on disk."""
        self.agents[name].partition.close()
        self.agents[name] = self.start(name)
        self.bag += self.agents[name].retry()

    def everybody_sends(self):
        for one in self.tasks.values():
            self.manage(task.commit(one))
            self.send(task.retry(self.tasks[one.hand_over]))
        for agent in self.agents.values():
            self.bag += agent.retry()

    def deliver_one(self):
        envelope = self.bag.pop(self.rng.randrange(len(self.bag)))
        if self.rng.random() < 0.15:
            return
        if self.rng.random() < 0.15:
            self.bag.append(envelope)
        if envelope.to == MANAGER:
            known = self.tasks.get(envelope.message.hand_over)
            self.manage(task.manage(known, envelope.message, envelope.sender))
        else:
            self.bag += self.agents[envelope.to].handle(envelope)

    def manage(self, reaction):
        if reaction.record is not None:
            self.tasks[reaction.record.hand_over] = reaction.record
        self.send(reaction.send)

    def send(self, messages):
        self.bag += [Envelope(MANAGER, to, message) for to, message in messages]


@pytest.mark.parametrize("seed", range(4))
def test_hand_overs_at_the_same_time_lose_and_double_nothing(tmp_path, seed):
    folders = three_partitions(tmp_path)
    samples = [Partition.open(folder).samples.tolist() for folder in folders]
    tasks = [
        Task("a", "w0", "w1", tuple(samples[0][:6]), chunk_size=2),
        Task("b", "w0", "w2", tuple(samples[0][6:11]), chunk_size=1),
        Task("c", "w1", "w0", tuple(samples[1][:4]), chunk_size=3),
        Task("d", "w2", "w1", tuple(samples[2][:4]), chunk_size=9),
    ]
    rng = random.Random(seed)
    with ExitStack() as stack:
        network = Network(folders, tasks, rng, stack)
        for _ in range(150):
            if not network.bag or rng.random() < 0.05:
                network.everybody_sends()
            if rng.random() < 0.04:
                network.restart(rng.choice(["w0", "w1", "w2"]))
            network.deliver_one()
            found = verify(folders)
            assert (found.problems, found.complete) == ((), True)
        partitions = [agent.partition for agent in network.agents.values()]
        outcome = carry_out(partitions, list(network.tasks.values()))
    assert [one.phase for one in outcome] == ["done"] * 4
    assert [len(Partition.open(folder)) for folder in folders] == [13, 26, 21]
    assert verify(folders).open_hand_overs == ()
    together = [sample for folder in folders for sample in content(Partition.open(folder)).items()]
    assert sorted(together) == [(sample, sample) for sample in range(60)]


@pytest.fixture
def agent(tmp_path):
    with Partition.open(three_partitions(tmp_path)[0], write=True) as partition:
        yield Agent(partition)


def names(envelopes):
    return [type(envelope.message).__name__ for envelope in envelopes]


def on_disk(agent):
    return Partition.open(agent.partition.folder)


def test_records_are_on_disk_before_anything_is_sent(agent):
    sent = agent.handle(Envelope(MANAGER, "w0", Begin("h", "w1", (0, 1), 4)))
    assert names(sent) == ["Offer"]
    assert on_disk(agent).index.giver_records["h"].phase == "offered"
    sent = agent.handle(Envelope(MANAGER, "w0", Commit("h")))
    assert names(sent) == ["Given"]
    assert on_disk(agent).index.giver_records["h"].phase == "given"
    assert not {0, 1} & set(on_disk(agent).samples.tolist())


def test_an_index_that_cannot_be_written_changes_nothing(agent, monkeypatch):
    def full(folder, index):
        raise OSError(28, "No space left on device")

    agent.handle(Envelope(MANAGER, "w0", Begin("h", "w1", (0, 1), 4)))
    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space left"):
        patch.setattr("evenstep.partitions.store.partition.write_index", full)
        agent.handle(Envelope(MANAGER, "w0", Commit("h")))
    assert len(agent.partition) == len(on_disk(agent)) == 20
    assert names(agent.retry()) == ["Offer"]


def test_a_restarted_agent_goes_on_from_its_disk(agent):
    agent.handle(Envelope(MANAGER, "w0", Begin("h", "w1", (0, 1), 4)))
    agent.partition.close()
    with Partition.open(agent.partition.folder, write=True) as partition:
        assert Agent(partition).retry() == agent.retry()
