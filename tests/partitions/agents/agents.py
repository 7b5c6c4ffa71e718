"""Real agent processes for tests, on ports that the operating system chooses.

They are forked from a process that has everything imported, so that starting one takes a moment;
what runs in them is the command line, from its first word on.
"""

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from unittest import mock

from evenstep.cli.main import main
from evenstep.manager.connection import Where
from evenstep.partitions.agents.agent_calls import AgentCalls
from evenstep.partitions.agents.driver import Migration, Progress
from evenstep.partitions.agents.remote_agent import RemoteAgent
from evenstep.partitions.store import Partition, partition, verify
from evenstep.partitions.store.index import write_index

PATIENCE = 20.0

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["pytest", "evenstep.partitions.agents.agent_server", __name__])


class Command:
    """A process that runs a command of `evenstep`; `prepare` is called in it before that."""

    def __init__(self, *words: object, log: Path, prepare: Any = None) -> None:
        self._heard, say = _context.Pipe(duplex=False)
        arguments = [str(word) for word in words]
        self.process = _context.Process(
            target=_run, args=(arguments, say, log, prepare), daemon=True
        )
        self.process.start()
        say.close()

    def line(self) -> str:
        """Return the next line that it prints; nothing at its end."""
        assert self._heard.poll(PATIENCE), "the command must say something"
        with contextlib.suppress(EOFError):
            return str(self._heard.recv())
        return ""

    def wait(self) -> int:
        """Wait until it has ended, and return its exit code."""
        self.process.join(PATIENCE)
        assert self.process.exitcode is not None, "the command must end"
        self._heard.close()
        return self.process.exitcode

    def kill(self) -> None:
        if self.process.is_alive():
            self.process.kill()
        self.wait()


class _Lines:
    """A standard output that sends whole lines."""

    def __init__(self, say: Connection) -> None:
        self._say, self._text = say, ""

    def write(self, text: str) -> int:
        *lines, self._text = (self._text + text).split("\n")
        for line in lines:
            self._say.send(line)
        return len(text)

    def flush(self) -> None:
        """Lines are sent as they are written."""


def _run(arguments: list[str], say: Connection, log: Path, prepare: Any) -> None:
    os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
    if prepare is not None:
        prepare()
    with contextlib.redirect_stdout(_Lines(say)):
        code = main(arguments)
    say.close()
    sys.exit(code)


class Crash:
    """Kills the process when it writes a phase of a hand-over, before or after it is on disk."""

    def __init__(self, hand_over: str, phase: str, moment: str) -> None:
        self._hand_over, self._phase, self._moment = hand_over, phase, moment

    def __call__(self) -> None:
        write_block = Partition.write_block

        def write_the_index(folder: Path, index: Any) -> None:
            records = [*index.giver_records.values(), *index.receiver_records.values()]
            mine = [r.phase for r in records if r.hand_over.startswith(self._hand_over)]
            die_if(self._phase in mine and self._moment == "before")
            write_index(folder, index)
            die_if(self._phase in mine and self._moment == "after")

        def write_the_block(self_: Any, name: str, rows: Any) -> None:
            write_block(self_, name, rows)
            second = name.startswith(self._hand_over) and name.endswith(".000001")
            die_if(second and self._phase == "chunk")

        mock.patch.object(partition, "write_index", write_the_index).start()
        mock.patch.object(Partition, "write_block", write_the_block).start()


class CrashAtCall:
    """Kills the agent when it gets a kind of call."""

    def __init__(self, call: str) -> None:
        self._call = call

    def __call__(self) -> None:
        mock.patch.object(AgentCalls, self._call, lambda *_: die_if(True)).start()


class CrashOfManager:
    """Kills the process when it hands in a kind of message, before or after it does."""

    def __init__(self, kind: str, moment: str) -> None:
        self._kind, self._moment = kind, moment

    def __call__(self) -> None:
        deliver = RemoteAgent.deliver

        def deliver_it(agent: RemoteAgent, envelope: Any) -> None:
            mine = type(envelope.message).__name__ == self._kind
            die_if(mine and self._moment == "before")
            deliver(agent, envelope)
            die_if(mine and self._moment == "after")

        mock.patch.object(RemoteAgent, "deliver", deliver_it).start()


def die_if(hit: bool) -> None:
    if hit:
        os.kill(os.getpid(), signal.SIGKILL)


class AgentProcess:
    """An agent; `start` starts it again on the same port."""

    def __init__(self, folder: Path, *options: object) -> None:
        self.folder = folder
        self._options = [str(option) for option in options]
        self._log = folder.with_suffix(".log")
        self.address = "127.0.0.1:0"
        self.start()

    def start(self, prepare: Any = None) -> None:
        words = ["partition", "serve", self.folder, "--listen", self.address, *self._options]
        self.command = Command(*words, log=self._log, prepare=prepare)
        said = self.command.line()
        assert " on " in said, self.log
        self.address = said.split(" on ")[1].strip()

    def wait_for_crash(self) -> None:
        assert self.command.wait() == -signal.SIGKILL, self.log

    def kill(self) -> None:
        self.command.kill()

    def stop(self) -> None:
        """Ask it to stop, and see that it does."""
        assert self.command.process.pid is not None
        os.kill(self.command.process.pid, signal.SIGTERM)
        assert "stopped" in self.command.line()
        assert self.command.wait() == 0, self.log

    @property
    def log(self) -> str:
        return self._log.read_text()


@contextlib.contextmanager
def serving(folders: list[Path], *options: object) -> Iterator[list[AgentProcess]]:
    with contextlib.ExitStack() as stack:
        started = []
        for folder in folders:
            started.append(AgentProcess(folder, *options))
            stack.callback(started[-1].kill)
        yield started


def migration(
    agents: list[AgentProcess],
    patience: float = PATIENCE,
    on_progress: Callable[[Progress], None] = lambda progress: None,
    **where: Any,
) -> Migration:
    """Return a manager of the agents."""
    remotes = [RemoteAgent(Where(agent.address, **where)) for agent in agents]
    return Migration(remotes, patience, on_progress)


def in_background(action: Callable[[], Any]) -> Callable[[], Any]:
    """Begin something, and return a function that waits for what comes of it."""
    found: list[Any] = []

    def act() -> None:
        try:
            found.append(action())
        except Exception as error:
            found.append(error)

    thread = threading.Thread(target=act, daemon=True)
    thread.start()

    def wait() -> Any:
        thread.join(2 * PATIENCE)
        assert not thread.is_alive()
        if isinstance(found[0], Exception):
            raise found[0]
        return found[0]

    return wait


def assert_whole(folders: list[Path], num_samples: int, at_rest: bool = True) -> None:
    """Check that every sample is in exactly one partition."""
    found = verify(folders)
    assert (found.problems, found.complete) == ((), True)
    if at_rest:
        assert (found.open_hand_overs, found.num_samples) == ((), num_samples)
