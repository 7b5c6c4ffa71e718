"""The protocol with an independent client: Apache Thrift's runtime and generated code."""

import contextlib
import re
from concurrent.futures import ThreadPoolExecutor

import pytest
from thrift.protocol.TBinaryProtocol import TBinaryProtocol
from thrift.transport.TSocket import TSocket
from thrift.transport.TTransport import TFramedTransport

from evenstep.manager.connection import VERSION
from evenstep.manager.wire import types
from tests.manager.apache.evenstep_manager import BatchSizeManager, constants, ttypes
from tests.manager.managers import said

STRUCTS = [
    "Greeting", "Settings", "Entry", "Report", "Plan", "Membership", "WorkerStatus", "JobStatus",
]  # fmt: skip


@contextlib.contextmanager
def apache(manager):
    host, port = manager.address.split(":")
    opened = TSocket(host, int(port))
    opened.setTimeout(20_000)
    transport = TFramedTransport(opened)
    transport.open()
    try:
        yield BatchSizeManager.Client(TBinaryProtocol(transport))
    finally:
        transport.close()


def test_job_of_apache_workers(manager, job):
    settings = ttypes.Settings(workers=2, total=60, policy="proportional", predictor="ema")
    with (
        apache(manager) as a,
        apache(manager) as b,
        ThreadPoolExecutor(2) as pool,
    ):
        for name, client in (("a", a), ("b", b)):
            assert client.hello(VERSION, "", VERSION, "apache").version == VERSION
            membership = client.join(ttypes.Entry(job, name, 0, 10.0, settings))
            assert (membership.iteration, membership.settings.total) == (0, 60)

        def report(client, k, x=None, t=None):
            return client.report(ttypes.Report(k, x, t, cpu=1.0, memory=0.5), 10.0)

        plans = list(pool.map(lambda c: report(c, 0), (a, b)))
        assert [plan.sizes for plan in plans] == [[30, 30]] * 2
        plans = list(pool.map(lambda arg: report(*arg), ((a, 1, 30, 3.0), (b, 1, 30, 1.5))))
        assert plans[0] == plans[1]
        assert (plans[0].number, plans[0].iteration, plans[0].workers) == (1, 1, ["a", "b"])
        assert plans[0].sizes == [20, 40]
        assert list(pool.map(lambda c: c.agree(1, 1, 10.0), (a, b))) == [1, 1]
        a.renew()
        (status,) = b.status(job)
        assert (status.running, status.iteration) == (True, 2)
        assert [(w.worker, w.connected, w.batch_size) for w in status.workers] == [
            ("a", True, 20), ("b", True, 40),
        ]  # fmt: skip
        a.leave(), b.leave()


def test_apache_worker_and_ours_share_a_job(manager, job):
    ours = manager.connect(job, "ours", workers=2, total=8, policy="even")
    with apache(manager) as theirs, ThreadPoolExecutor(1) as pool:
        theirs.hello(VERSION, "", None, None)
        theirs.join(ttypes.Entry(job, "theirs", 0, 10.0))
        plan = pool.submit(theirs.report, ttypes.Report(0), 10.0)
        assert ours.boundary(said("ours", 0)).sizes.tolist() == plan.result().sizes == [4, 4]
        theirs.leave()
    ours.leave()


def test_refusals_are_exceptions_of_the_file(manager, job):
    with apache(manager) as client:
        with pytest.raises(ttypes.Refused) as early:
            client.status("")
        assert early.value.problem == ttypes.Problem.TOKEN
        with pytest.raises(ttypes.Refused) as version:
            client.hello(2, "", 3, "apache 0.17")
        assert version.value.problem == ttypes.Problem.VERSION
        assert re.search(
            r"version 1, got .* apache 0\.17, which knows versions 2 to 3$", version.value.message
        )
        client.hello(1, "", 0, "")
        with pytest.raises(ttypes.Refused) as unknown:
            client.join(ttypes.Entry(job, "a", 0, 10.0))
        assert unknown.value.problem == ttypes.Problem.UNKNOWN_JOB
        with pytest.raises(ttypes.Refused, match="settings must be given"):
            client.create(job, None, None)
        settings = ttypes.Settings(workers=2, total=60)
        with pytest.raises(ttypes.Refused, match=f"reuse .*, got {job}-x"):
            client.create(job, settings, f"{job}-x")
        with pytest.raises(ttypes.Refused, match=f"reuse .*, got {job}-x"):
            client.join(ttypes.Entry(job, "a", 0, 10.0, settings, reuse=f"{job}-x"))


def test_generated_code_is_that_of_our_file():
    assert constants.VERSION == types().VERSION == VERSION
    assert ttypes.Problem._NAMES_TO_VALUES == types().Problem._NAMES_TO_VALUES
    ours = [(types(), name) for name in [*STRUCTS, "Refused"]]
    calls = types().BatchSizeManager.thrift_services
    ours += [(types().BatchSizeManager, f"{call}_args") for call in calls]
    for module, name in ours:
        generated = getattr(ttypes if module is types() else BatchSizeManager, name)
        made = {f[0]: f[2] for f in generated.thrift_spec if f is not None}
        assert made == {k: f[1] for k, f in getattr(module, name).thrift_spec.items()}, name
