"""The parameter server of a run in namespaces, without processes."""

import asyncio
import re

import numpy as np
import pytest
from thriftpy2.thrift import TMessageType

from evenstep.errors import Refused
from evenstep.manager import wire
from evenstep.manager.client_connection import ClientConnection
from evenstep.simulator.clusters.scenarios import make_scenario
from evenstep.simulator.engine.replica import Replica
from evenstep.simulator.engine.simulation import Setup
from evenstep.simulator.workloads.registry import make_workload
from reproduction.netns.flat import pack, unpack
from reproduction.netns.idl import PARAMETER_SERVER, types
from reproduction.netns.results import ROUNDING
from reproduction.netns.service import TrainingService
from reproduction.netns.single_process import difference, train_alone
from reproduction.netns.training import SEED, WORKLOAD, Training

CLUSTER = make_scenario("G", noisy=False)


@pytest.fixture(scope="module")
def workload():
    return make_workload(WORKLOAD)


@pytest.fixture
def training(workload):
    return Training(Setup("equal_finish"), CLUSTER, workload)


def gradient_of(replica, parameters, samples):
    return pack(replica.gradients(unpack(parameters, replica.parameters), samples))


def iterate(training, workload, spoil=lambda worker, samples: samples):
    """Let all workers compute their gradients; `spoil` may take others than these samples."""
    replica = Replica(workload, SEED)
    for worker, batch in enumerate(training.begin()):
        samples = spoil(worker, batch.samples)
        training.push(worker, gradient_of(replica, training.pull(), samples))
    at = CLUSTER.conditions(len(training.sizes) - 1, 0.0)
    training.end(CLUSTER.times(training.sizes[-1], at))


def test_parameters_fill_the_line_as_scenario_g_assumes(training):
    seconds = 2 * len(training.pull()) * 8 / 100e6
    assert seconds == pytest.approx(0.1 * CLUSTER.conditions(0, 0.0).communication[0], rel=0.01)


def test_plans_of_a_non_blocking_setup_come_an_iteration_later(workload):
    at_once, later = (Training(Setup("equal_finish", delay=k), CLUSTER, workload) for k in (0, 1))
    for _ in range(3):
        iterate(at_once, workload)
        iterate(later, workload)
    assert later.sizes[2].tolist() == at_once.sizes[1].tolist() != at_once.sizes[0].tolist()


def test_unequal_batches_train_what_whole_batches_train(training, workload):
    for _ in range(12):
        iterate(training, workload)
    assert len({tuple(sizes) for sizes in training.sizes}) > 2
    assert difference(training.parameters, train_alone(workload, 12, 128)) < ROUNDING
    assert np.array_equal(np.sort(np.concatenate(training.samples)), np.arange(1536))


def test_one_sample_that_is_trained_twice_shows(training, workload):
    def twice(worker, samples):
        return np.append(samples[:-1], samples[0]) if worker == 3 else samples

    iterate(training, workload, twice)
    assert difference(training.parameters, train_alone(workload, 1, 128)) > 1e4 * ROUNDING


def test_gradient_without_a_batch_is_refused(training, workload):
    with pytest.raises(Refused, match=r"^worker 2 .*\bbatch\b.*, got none$"):
        training.push(2, b"")


def test_gradient_of_another_length_is_refused(training):
    training.begin()
    with pytest.raises(Refused, match="tensors must have 93680 bytes, got 8"):
        training.push(0, bytes(8))
    assert not training.has_pushed(0)


class Caller:
    """One worker's end of a connection: what it asks, and what it was answered."""

    def __init__(self, service):
        self._service = service
        self.answers: list[bytes] = []
        self.peer = ClientConnection(self.answers.append, lambda: None)

    def call(self, name, **arguments):
        """Make a call, and return the result, or None while there is no answer."""
        self.answers.clear()
        body = wire.encode_body(getattr(types().ParameterServer, f"{name}_args")(**arguments))
        frame = wire.encode_frame(name, TMessageType.CALL, 7, body)
        self._service.handle(self.peer, frame[4:])
        return self.result

    @property
    def result(self):
        if not self.answers:
            return None
        message = wire.parse_message(self.answers[-1][4:])
        into = getattr(types().ParameterServer, f"{message.name}_result")()
        return wire.decode_body(into, message.body)


def serve(training, iterations, talk):
    """Let callers talk to a service, and return the iterations that it announced."""
    begun: list[int] = []

    async def talking():
        service = TrainingService(training, 4, iterations, begun.append)
        talk(service, [Caller(service) for _ in range(4)])
        return service.over

    asyncio.run(talking())
    return begun


def test_batches_come_when_all_have_reported_and_end_when_it_is_over(training, workload):
    replica = Replica(workload, SEED)

    def report_all(callers, t):
        early = [caller.call("report", worker=i, batch_processing_time=t)
                 for i, caller in enumerate(callers)][:-1]  # fmt: skip
        assert early == [None] * 3
        assert not any(caller.peer.busy for caller in callers)
        return [caller.result.success for caller in callers]

    def talk(service, callers):
        batches = report_all(callers, 0.0)
        assert sum(len(batch.samples) for batch in batches) == 128
        pulled = callers[0].call("pull").success
        for i, (caller, batch) in enumerate(zip(callers, batches, strict=True)):
            gradient = gradient_of(replica, pulled, np.array(batch.samples))
            assert caller.call("push", worker=i, gradient=gradient).refused is None
        assert callers[0].call("pull").success == pulled
        assert [batch.samples for batch in report_all(callers, 0.5)] == [[]] * 4
        assert service.over.result() is None
        assert callers[0].call("pull").success != pulled

    assert serve(training, 1, talk) == [0]
    assert training.times[0].tolist() == [0.5] * 4


def test_calls_that_break_a_rule_are_refused(training):
    def talk(service, callers):
        def refused(name, **arguments):
            error = callers[0].call(name, **arguments).refused
            return types().Problem._VALUES_TO_NAMES[error.problem], error.message

        problem, message = refused("hello", version=2, token="")
        assert problem == "VERSION" and re.search(r"version 1, got .* version 2$", message)
        problem, message = refused("push", worker=4, gradient=b"")
        assert problem == "INVALID" and re.fullmatch(r"worker .*from 0 to 3, got 4", message)
        for i, caller in enumerate(callers):
            caller.call("report", worker=i, batch_processing_time=0.0)
        problem, message = refused("report", worker=0, batch_processing_time=0.1)
        assert problem == "OUT_OF_TURN" and re.match(r"worker 0 must push\b", message)
        assert service.refused.total() == 3
        assert not service.over.done()

    serve(training, 2, talk)


def test_what_fails_within_ends_the_run_with_its_reason(training):
    def talk(service, callers):
        service.handle(callers[0].peer, b"no message of ours")
        with pytest.raises(Exception, match=r"\bversion of Thrift\b"):
            raise service.over.exception()

    serve(training, 1, talk)


def test_version_is_that_of_the_file():
    assert PARAMETER_SERVER.newest == types().VERSION
