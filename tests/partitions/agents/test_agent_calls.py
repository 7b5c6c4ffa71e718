"""The calls of an agent, without a network."""

import itertools

import pytest

from evenstep.errors import InvalidSetting, Refused
from evenstep.partitions.agents.agent_calls import LONGEST_SILENCE, AgentCalls
from evenstep.partitions.agents.process_limits import BURST, Bandwidth
from evenstep.partitions.agents.thrift_messages import MAX_SAMPLES, from_struct
from evenstep.partitions.handover.protocol import (
    MANAGER,
    Begin,
    Cancel,
    Envelope,
    Failed,
    Offer,
    Wanted,
)
from evenstep.partitions.store import Agent, Partition
from tests.partitions.store.folders import three_partitions


class Sent:
    """Senders that only note what they are given."""

    sent = 0

    def __init__(self):
        self.envelopes, self.addresses, self.busy = [], {}, False
        self.waiting: frozenset[int] = frozenset()

    def introduce(self, addresses):
        self.addresses |= addresses

    def send(self, envelope):
        self.envelopes.append(envelope)

    def is_busy(self, hand_over):
        return self.busy

    def chunks(self, hand_over):
        return self.waiting

    def take(self):
        taken, self.envelopes = self.envelopes, []
        return taken


@pytest.fixture
def partition(tmp_path):
    with Partition.open(three_partitions(tmp_path)[0], write=True) as opened:
        yield opened


@pytest.fixture
def sent():
    return Sent()


@pytest.fixture
def agent_calls(partition, sent):
    return AgentCalls(Agent(partition), sent, only_loopback=True)


def begin(partition, count=4):
    samples = tuple(partition.samples[:count].tolist())
    return Envelope(MANAGER, "w0", Begin("m-0", "w1", samples, 1))


def test_what_is_not_answered_is_said_again_less_and_less_often(agent_calls, partition, sent):
    agent_calls.deliver(begin(partition), now=0.0)
    assert [type(envelope.message) for envelope in sent.take()] == [Offer]
    times = []
    for tick in range(1, 600):
        agent_calls.sweep(tick / 10)
        times += [tick / 10] * len(sent.take())
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert gaps[0] < 1.1 and gaps == sorted(gaps) and gaps[-1] == pytest.approx(LONGEST_SILENCE)
    # While messages of it wait to be sent, nothing is added to them.
    sent.busy = True
    agent_calls.sweep(1000.0)
    assert sent.take() == []


def test_somebody_new_is_told_at_once(agent_calls, partition, sent):
    agent_calls.deliver(begin(partition), now=0.0)
    for tick in range(100):
        agent_calls.sweep(float(tick))
    sent.take()
    agent_calls.introduce({"w1": "127.0.0.1:1"})
    agent_calls.sweep(99.1)
    assert [type(envelope.message) for envelope in sent.take()] == [Offer]


def test_nobody_makes_an_agent_read_more_than_a_window_at_once(agent_calls, partition, sent):
    agent_calls.deliver(begin(partition, 20), now=0.0)
    sent.take()
    agent_calls.deliver(Envelope("w1", "w0", Wanted("m-0", tuple(range(20)))), now=0.0)
    assert [envelope.message.number for envelope in sent.take()] == [0, 1, 2, 3]
    # Those that wait to be sent are not made again.
    sent.waiting = frozenset({0, 2})
    agent_calls.deliver(Envelope("w1", "w0", Wanted("m-0", (0, 1, 2, 3))), now=0.0)
    assert [envelope.message.number for envelope in sent.take()] == [1, 3]


def test_messages_for_the_manager_lie_until_they_are_collected(agent_calls):
    agent_calls.deliver(Envelope(MANAGER, "w0", Cancel("x-0", "why")), now=0.0)
    (struct,) = agent_calls.collect().envelopes
    assert from_struct(struct) == Envelope("w0", MANAGER, Failed("x-0", "why"))
    assert agent_calls.collect().envelopes == []


def test_what_breaks_a_rule_is_refused_and_changes_nothing(agent_calls, partition, sent):
    version = partition.index.version
    many = Envelope(MANAGER, "w0", Begin("m-0", "w1", tuple(range(MAX_SAMPLES + 1)), 1))
    for call, rule in (
        (lambda: agent_calls.introduce({"w1": "192.0.2.1:7413"}), "must be on loopback"),
        (lambda: agent_calls.introduce({"../w1": "127.0.0.1:7413"}), "name of a partition"),
        (lambda: agent_calls.introduce({"w1": "127.0.0.1:port"}), "a port must be"),
        (lambda: agent_calls.deliver(many, 0.0), "at most 100000 samples"),
        (
            lambda: agent_calls.deliver(Envelope("w0", "w1", Wanted("m", ())), 0.0),
            "this agent is w0",
        ),
        (lambda: agent_calls.samples(-1, version), "a position must be"),
        (lambda: agent_calls.samples(0, version + 1), "has version"),
        (lambda: agent_calls.begun("nothing"), "must be open here"),
    ):
        with pytest.raises((InvalidSetting, Refused), match=rule):
            call()
    assert (partition.index.version, sent.addresses, sent.envelopes) == (version, {}, [])


def test_bandwidth_is_kept_however_it_is_asked_for():
    limited, now = Bandwidth(1000), 0.0
    for sizes in ([100] * 50, [1] * 5000, [5000], [4000, 1, 999]):
        limited, now = Bandwidth(1000), 0.0
        for size in sizes:
            now += limited.reserve(size, now)
        assert now == pytest.approx(5.0 - BURST)
    # What was not used in a pause is not saved up.
    assert limited.reserve(5000, now + 100.0) == pytest.approx(5.0 - BURST)
    assert Bandwidth(None).reserve(10**12, 0.0) == 0.0
