"""Everything but crashes that goes wrong between agents, with real processes."""

import contextlib
import os
import random
import socket
import struct
import threading
import time
from dataclasses import replace

import numpy as np
import pytest
from thriftpy2.thrift import TMessageType

from evenstep.errors import InvalidSetting, ManagerUnreachable, Refused
from evenstep.manager import wire
from evenstep.manager.access import client_context
from evenstep.manager.connection import SOFTWARE, ServiceConnection, Where
from evenstep.partitions.agents.driver import Migration, Progress
from evenstep.partitions.agents.migration_run import migrate
from evenstep.partitions.agents.remote_agent import RemoteAgent
from evenstep.partitions.agents.settings import MigrationSettings
from evenstep.partitions.agents.thrift_messages import AGENT, types
from evenstep.partitions.handover.protocol import MANAGER, Begin, Envelope
from evenstep.partitions.store import Partition, create_partitions
from tests.manager.test_access import make_certificate
from tests.manager.test_fuzz import framed, garbage
from tests.partitions.agents.agents import (
    Command,
    assert_whole,
    in_background,
    migration,
    serving,
)
from tests.partitions.store.folders import NUM_SAMPLES, three_partitions

TOKEN = "correct-horse-battery-staple"
ROW_BYTES = 12 + 40_000


def two_large_partitions(folder, count=200):
    """Two partitions of 100 rows of 40 kB each."""
    data = np.random.default_rng(0).integers(0, 256, (count, 40_000), dtype=np.uint8)
    folders = [folder / "w0", folder / "w1"]
    create_partitions(folders, data, [np.arange(count // 2), np.arange(count // 2, count)])
    return folders


def test_hand_overs_between_pairs_and_progress(tmp_path):
    folders = three_partitions(tmp_path)
    seen: list[Progress] = []
    with serving(folders) as agents:
        with migration(agents, on_progress=seen.append) as manager:
            reached: list[int] = []
            tasks = manager.plan([30, 5, 25], "m1", chunk_size=2)
            done = manager.carry_out(tasks, boundary=lambda: reached.append(len(seen)))
            assert [task.phase for task in done] == ["done", "done"]
            assert len(reached) == 1
            assert list(manager.sizes.values()) == [30, 5, 25]
            assert (seen[-1].over, seen[-1].hand_overs) == (2, 2)
            assert manager.compact() > 0
        assert_whole(folders, NUM_SAMPLES)
        for agent in agents:
            agent.stop()
    assert [len(list((folder / "blocks").iterdir())) for folder in folders] == [1, 1, 1]


def test_command_line_plans_moves_and_says_what_happened(tmp_path):
    folders = three_partitions(tmp_path)
    with serving(folders) as agents:
        addresses = ",".join(agent.address for agent in agents)
        words = ["partition", "migrate", "--agents", addresses, "--batch-sizes", "1,2,3"]
        dry = Command(*words, "--dry-run", log=tmp_path / "log")
        assert dry.line() == "w0 to w2: 10 samples, planned"
        assert (dry.line(), dry.wait()) == ("10 samples would move", 0)
        assert_whole(folders, NUM_SAMPLES)
        moved = Command(*words, "--compact", log=tmp_path / "log")
        assert moved.line() == "w0 to w2: 10 samples, done"
        assert (moved.line(), moved.wait()) == ("10 samples moved", 0)
        both = Command(*words, folders[0], log=tmp_path / "log")
        assert both.wait() == 2 and "either folders or --agents" in (tmp_path / "log").read_text()


def test_quota_refuses_and_everything_stays_as_it_was(tmp_path):
    folders = three_partitions(tmp_path)
    row = Partition.open(folders[2]).index.layout.row.itemsize
    with serving(folders[:2]) as agents, serving(folders[2:], "--quota", 25 * row) as small:
        before = [Partition.open(folder).samples.tolist() for folder in folders]
        addresses = ",".join(agent.address for agent in agents + small)
        words = ["partition", "migrate", "--agents", addresses, "--batch-sizes", "1,2,3"]
        command = Command(*words, log=tmp_path / "log")
        said = command.line()
        assert "w0 to w2: 10 samples, failed: w2 refused:" in said and "must fit the quota" in said
        assert (command.line(), command.wait()) == ("0 samples moved", 1)
        assert_whole(folders, NUM_SAMPLES)
        assert [Partition.open(folder).samples.tolist() for folder in folders] == before


def test_agent_that_does_not_answer_is_waited_for_and_then_given_up(tmp_path):
    folders = three_partitions(tmp_path)
    with serving(folders) as agents, migration(agents, patience=1.0) as manager:
        tasks = manager.plan([10, 20, 30], "m1")
        agents[2].kill()
        (task,) = manager.carry_out(tasks)
        assert (task.phase, task.reason) == ("failed", "no progress within 1 s")
        agents[2].start()
        assert manager.finish() == ()
        assert_whole(folders, NUM_SAMPLES)
        assert list(manager.sizes.values()) == [20, 20, 20]


class Proxy:
    """Stands before an agent, and flips a bit in some of the large pieces that pass."""

    def __init__(self, address, seed, share):
        self._target = address.rsplit(":", 1)
        self._rng, self._share = random.Random(seed), share
        self.num_flipped = 0
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        self._sockets = [self._listening]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                inner, _ = self._listening.accept()
            except OSError:
                return
            outer = socket.create_connection(self._target)
            self._sockets += [inner, outer]
            for pair in ((inner, outer), (outer, inner)):
                threading.Thread(target=self._pump, args=pair, daemon=True).start()

    def _pump(self, source, sink):
        try:
            while piece := bytearray(source.recv(65536)):
                if len(piece) > 4096 and self._rng.random() < self._share:
                    self.num_flipped += 1
                    piece[self._rng.randrange(1000, len(piece))] ^= 1 << self._rng.randrange(8)
                sink.sendall(piece)
        except OSError:
            pass
        for one in (source, sink):
            with_shutdown(one)

    def close(self):
        for one in self._sockets:
            with_shutdown(one)
            one.close()


def with_shutdown(one):
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)


def test_bits_that_flip_on_the_wire_are_noticed_and_the_chunk_is_sent_again(tmp_path):
    folders = two_large_partitions(tmp_path)
    with serving(folders) as agents:
        proxy = Proxy(agents[1].address, seed=1, share=0.1)
        try:
            remotes = [RemoteAgent(Where(one)) for one in (agents[0].address, proxy.address)]
            with Migration(remotes, 20.0) as manager:
                tasks = manager.plan([1, 3], "m1", chunk_size=5)
                assert [task.phase for task in manager.carry_out(tasks)] == ["done"]
        finally:
            proxy.close()
        assert proxy.num_flipped > 0
        assert "do not fit their checksum" in agents[0].log
        assert_whole(folders, 200)
        assert len(Partition.open(folders[1])) == 150


def test_twice_the_bandwidth_takes_half_the_time(tmp_path):
    folders = two_large_partitions(tmp_path)
    taken, rows = [], 50
    for number, limit in enumerate((1_000_000, 2_000_000)):
        options = ("--bandwidth", limit, "--nice", 0)
        with serving(folders, *options) as agents, migration(agents) as manager:
            wanted = [50, 150] if number % 2 == 0 else [100, 100]
            tasks = manager.plan(wanted, f"m{number}", chunk_size=5)
            assert [len(task.samples) for task in tasks] == [rows]
            begun = time.monotonic()
            assert [task.phase for task in manager.carry_out(tasks)] == ["done"]
            taken.append(time.monotonic() - begun)
            sent = max(remote.describe().sent for remote in manager._agents.values())
        # However busy the machine is, it is never faster than the limit lets it.
        assert sent >= rows * ROW_BYTES and taken[-1] > 0.9 * (sent / limit - 0.1)
    assert_whole(folders, 200)
    fair = rows * ROW_BYTES / np.array([1_000_000, 2_000_000])
    if (taken > 1.2 * fair + 0.3).any():
        pytest.skip(f"the machine is too busy to tell: {taken[0]:.1f} s and {taken[1]:.1f} s")
    assert 1.5 < taken[0] / taken[1] < 2.5


def test_token_and_tls(tmp_path):
    certificate, key = make_certificate(tmp_path)
    token_file = tmp_path / "token"
    token_file.write_text(TOKEN)
    folders = three_partitions(tmp_path)
    options = ["--token-file", token_file, "--tls-cert", certificate, "--tls-key", key]
    context = client_context(certificate)
    with serving(folders, *options) as agents:
        for wrong in (None, "wrong-horse-battery-staple"):
            with pytest.raises(Refused, match="token") as refused:
                ServiceConnection(Where(agents[0].address, wrong, context), 5.0, AGENT)
            assert refused.value.problem == "TOKEN"
        with pytest.raises(ManagerUnreachable):
            ServiceConnection(Where(agents[0].address, TOKEN), 5.0, AGENT)
        with migration(agents, token=TOKEN, tls=context) as manager:
            done = manager.carry_out(manager.plan([10, 20, 30], "m1"))
            assert [task.phase for task in done] == ["done"]
        assert_whole(folders, NUM_SAMPLES)
        assert not any(TOKEN in agent.log for agent in agents)


def test_address_that_others_can_reach_is_refused_without_token_and_tls(tmp_path):
    folder = three_partitions(tmp_path)[0]
    refused = Command("partition", "serve", folder, "--listen", "0.0.0.0:0", log=tmp_path / "log")
    assert refused.wait() == 2
    assert "an agent must listen on loopback, or have a token" in (tmp_path / "log").read_text()


def test_nothing_is_answered_before_hello_and_no_large_frame_is_read(tmp_path):
    with serving(three_partitions(tmp_path)[:1]) as (agent,):
        host, port = agent.address.split(":")
        with socket.create_connection((host, int(port)), 5.0) as line:
            line.sendall(call("describe"))
            assert b"must be hello" in line.recv(4096)
            line.sendall(struct.pack("!i", wire.MAX_REQUEST + 1))
            assert b"a frame must have" in line.recv(4096)
        agent.stop()


def test_older_caller_is_greeted_and_one_of_no_common_version_refused(tmp_path):
    with serving(three_partitions(tmp_path)[:1]) as (agent,):
        host, port = agent.address.split(":")
        with socket.create_connection((host, int(port)), 5.0) as line:
            # Callers from before ranges give their one version and the token.
            line.sendall(call("hello", version=1, token=""))
            assert b"hello" in line.recv(4096)
            line.sendall(call("describe"))
            assert b"must be hello" not in line.recv(4096)
        newer = replace(AGENT, oldest=1, newest=2)
        with contextlib.closing(ServiceConnection(Where(agent.address), 5.0, newer)) as opened:
            assert opened.version == 1
        with pytest.raises(Refused) as refused:
            ServiceConnection(Where(agent.address), 5.0, replace(AGENT, oldest=2, newest=3))
        assert str(refused.value) == (
            f"this agent is {SOFTWARE}, which knows version 1, "
            f"got a client that is {SOFTWARE}, which knows versions 2 to 3"
        )
        agent.stop()


def test_garbage_is_answered_or_closed_and_a_migration_does_not_notice(tmp_path):
    folders = three_partitions(tmp_path)
    sealed = types().Sealed(content=b"x" * 20, crc=7)
    valid = [
        call("hello", version=1, token="")[4:],
        call("introduce", peers=sealed)[4:],
        call("deliver", envelope=sealed)[4:],
        call("collect")[4:],
        call("describe")[4:],
        call("begun", hand_over="m1-0")[4:],
        call("samples", first=0, version=1)[4:],
    ]
    rng = random.Random(3)
    with serving(folders) as agents, migration(agents) as manager:
        tasks = manager.plan([10, 20, 30], "m1", chunk_size=1)
        outcome = in_background(lambda: manager.carry_out(tasks))
        for number in range(300):
            agent = agents[number % 3]
            host, port = agent.address.split(":")
            with socket.create_connection((host, int(port)), 5.0) as line:
                line.sendall((framed(valid[0]) if number % 2 else b"") + garbage(rng, valid))
                line.shutdown(socket.SHUT_WR)
                while line.recv(65536):
                    pass
        # Any client with the token may collect messages; the manager asks again.
        assert [task.phase for task in outcome()] == ["done"]
        assert_whole(folders, NUM_SAMPLES)
        for agent in agents:
            agent.stop()
            assert "Traceback" not in agent.log


def test_giver_refuses_terms_that_no_message_can_carry(tmp_path):
    folders = two_large_partitions(tmp_path, count=1000)
    with serving(folders) as agents, migration(agents) as manager:
        (task,) = manager.carry_out(manager.plan([1, 19], "m1", chunk_size=450))
        assert task.phase == "failed" and "chunks of at most 16777216 bytes" in task.reason
        samples = tuple(Partition.open(folders[0]).samples[:450].tolist())
        with pytest.raises(Refused, match="chunks of at most") as refused:
            remote = next(iter(manager._agents.values()))
            remote.deliver(Envelope(MANAGER, "w0", Begin("m2-0", "w1", samples, 450)))
        assert refused.value.problem == "INVALID"
    assert_whole(folders, 1000)


def call(name, **arguments):
    """Return a call as a frame."""
    body = wire.encode_body(getattr(types().PartitionAgent, f"{name}_args")(**arguments))
    return wire.encode_frame(name, TMessageType.CALL, 1, body)


def test_two_agents_of_one_partition_are_refused(tmp_path):
    folders = three_partitions(tmp_path)
    with serving(folders[:1]) as (agent,):
        again = Command("partition", "serve", folders[0], log=tmp_path / "log")
        assert again.wait() == 2
        assert "another process is changing it" in (tmp_path / "log").read_text()
        with (
            pytest.raises(InvalidSetting, match="different partitions"),
            migration([agent, agent]),
        ):
            pass


def test_agent_steps_back_behind_the_training(tmp_path):
    folders = three_partitions(tmp_path)
    with serving(folders[:1]) as (usual,), serving(folders[1:2], "--nice", 3) as (other,):
        before = os.getpriority(os.PRIO_PROCESS, 0)
        for agent, nice in ((usual, 15), (other, 3)):
            pid = agent.command.process.pid
            assert pid is not None
            assert os.getpriority(os.PRIO_PROCESS, pid) == min(19, before + nice)
            assert os.sched_getscheduler(pid) == os.SCHED_BATCH


@pytest.mark.timeout(8)
def test_a_migration_waits_for_a_silent_agent_no_longer_than_its_patience():
    """As one behind a link that is down: connected, and then nothing."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(ManagerUnreachable, match="timed out"):
            migrate(MigrationSettings(agents=[address], batch_sizes=[1], patience=0.2))
