"""Processes beside a training: the agent of each worker, and a manager while samples migrate.

In processes of their own, they do not compete with training for its interpreter, step back behind
it on the processors, and can be ended at any moment: hand-overs outlive whoever carries them out.
They are the commands `evenstep partition serve` and `migrate`, and end when whoever started them
does, however that ends.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import IO, Any

from evenstep.errors import EvenstepError
from evenstep.partition.task import BANDWIDTH

START = 60.0
"""Seconds until an agent must listen."""

_NICE = 10
"""How far a manager steps back behind the training; agents do so by themselves."""
_GRACE = 5.0
"""Seconds that a process has to end in good order."""


@dataclass(frozen=True)
class Serving:
    """How agents listen and find each other; `evenstep partition serve --help` has the options."""

    listen: str = "127.0.0.1:0"
    """An address of this machine by which all other agents reach it; port 0 is any free one."""
    bandwidth: float | None = BANDWIDTH
    """Bytes of rows a second, each way; None for no limit."""
    token_file: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    tls_ca: str | None = None
    insecure: bool = False
    """Whether other addresses than loopback will do without a token and TLS."""
    patience: float = 60.0
    """Seconds without any progress after which a migration is called off."""

    @property
    def authority(self) -> str | None:
        """The certificates to believe."""
        return self.tls_ca or self.tls_cert

    def serve_words(self, folder: Path) -> list[str]:
        """Return the command of the agent of a partition."""
        options = {
            "listen": self.listen, "bandwidth": self.bandwidth, "token-file": self.token_file,
            "tls-cert": self.tls_cert, "tls-key": self.tls_key, "tls-ca": self.tls_ca,
        }  # fmt: skip
        flags = {"--unlimited": self.bandwidth is None, "--insecure": self.insecure}
        given = [flag for flag, is_given in flags.items() if is_given]
        return ["partition", "serve", str(folder), *_words(options), *given, "--until-eof"]

    def migrate_words(self, agents: Sequence[str], sizes: Sequence[int], seed: int) -> list[str]:
        """Return the command that makes the partitions of agents as large as these sizes."""
        options = {
            "agents": ",".join(agents), "sizes": ",".join(map(str, sizes)), "seed": seed,
            "patience": self.patience, "token-file": self.token_file, "tls-ca": self.authority,
        }  # fmt: skip
        return ["partition", "migrate", *_words(options), "--json", "--until-eof"]


@dataclass(frozen=True)
class Outcome:
    """What became of a migration."""

    moved: int
    """Samples that are with their receivers."""
    problems: tuple[str, ...]
    """Why others are not."""
    is_over: bool
    """Whether every hand-over came to an end, so that each sample is listed by one partition."""


class AgentBeside:
    """The agent of a partition; listens once it is made."""

    def __init__(self, folder: Path, serving: Serving) -> None:
        self._folder, self._serving = folder, serving
        self._process = _Process(serving.serve_words(folder))
        try:
            said = self._process.first_line(START)
        except BaseException:
            self.close()
            raise
        _, _, self.address = said.rpartition(" on ")
        """Where it listens."""

    @property
    def pid(self) -> int:
        return self._process.pid

    def revive(self) -> None:
        """Start it again where it was, if it has died; without waiting until it listens."""
        if self._process.is_running:
            return
        self.close()
        again = replace(self._serving, listen=self.address)
        # Without it migrations fail, and training goes on.
        with contextlib.suppress(OSError):
            self._process = _Process(again.serve_words(self._folder))

    def close(self) -> None:
        """End it; done at exit by itself."""
        self._process.close()


class MigrationBeside:
    """A migration that was begun, and goes on by itself; also one that could not even begin."""

    def __init__(self, words: Sequence[str]) -> None:
        self._process: _Process | None = None
        self._problem = ""
        try:
            self._process = _Process(words)
            os.setpriority(os.PRIO_PROCESS, self._process.pid, _NICE)
        except OSError as error:
            self._problem = str(error)

    @property
    def outcome(self) -> Outcome | None:
        """What became of it; None while it goes on. Asking costs next to nothing."""
        if self._process is None:
            return Outcome(0, (self._problem,), is_over=False)
        if self._process.is_running:
            return None
        return _outcome_of(self._process.output, self._process.complaint)

    def close(self) -> None:
        """Leave it where it is, if it goes on: the next manager takes it up from there."""
        if self._process is not None:
            self._process.close()


class _Process:
    """A command of `evenstep` that says things, and ends with this process."""

    def __init__(self, words: Sequence[str]) -> None:
        with contextlib.ExitStack() as stack:
            self._said: IO[bytes] = stack.enter_context(tempfile.TemporaryFile())
            self._complained: IO[bytes] = stack.enter_context(tempfile.TemporaryFile())
            self._process = subprocess.Popen(
                [sys.executable, "-m", "evenstep", *words],
                stdin=subprocess.PIPE,
                stdout=self._said,
                stderr=self._complained,
                # It computes next to nothing.
                env=os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
            )
            self._files = stack.pop_all()
        atexit.register(self.close)
        # A loading process may outlive its killed parent, and would keep the pipe from ending.
        os.register_at_fork(after_in_child=partial(_let_go, weakref.ref(self)))

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    @property
    def output(self) -> str:
        return _content(self._said)

    @property
    def complaint(self) -> str:
        """The last line of its errors, which says what is wrong."""
        lines = _content(self._complained).strip().splitlines()
        return lines[-1] if lines else f"exit code {self._process.poll()}"

    def first_line(self, seconds: float) -> str:
        """Return what it says first; EvenstepError where it ends, or is silent for too long."""
        until = time.monotonic() + seconds
        while "\n" not in self.output:
            if not self.is_running:
                raise EvenstepError(f"the agent did not start: {self.complaint}")
            if time.monotonic() > until:
                raise EvenstepError(f"the agent must be there after {seconds:g} s, got no word")
            time.sleep(0.02)
        return self.output.split("\n", 1)[0].strip()

    def let_go(self) -> None:
        """Close the pipe, at whose end the process ends."""
        if self._process.stdin is not None:
            self._process.stdin.close()

    def close(self) -> None:
        """End the process, and wait until it has."""
        atexit.unregister(self.close)
        self.let_go()
        if self.is_running:
            self._process.terminate()
            try:
                self._process.wait(_GRACE)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._files.close()


def _let_go(process: weakref.ref[_Process]) -> None:
    if (one := process()) is not None:
        one.let_go()


def _outcome_of(output: str, complaint: str) -> Outcome:
    """Read what `migrate --json` has printed; it prints nothing when it fails as a whole."""
    try:
        hand_overs: list[dict[str, Any]] = json.loads(output)["hand_overs"]
    except (ValueError, KeyError):
        return Outcome(0, (complaint,), is_over=False)
    return Outcome(
        sum(one["samples"] for one in hand_overs if one["outcome"] == "done"),
        tuple(
            f"{one['giver']} to {one['receiver']}: {one['reason'] or one['outcome']}"
            for one in hand_overs
            if one["outcome"] != "done"
        ),
        is_over=all(one["outcome"] != "open" for one in hand_overs),
    )


def _words(options: Mapping[str, object]) -> list[str]:
    """Return options as words of a command line; those that are None are left out.

    >>> _words({"listen": "127.0.0.1:0", "bandwidth": None})
    ['--listen', '127.0.0.1:0']
    """
    given = {name: value for name, value in options.items() if value is not None}
    return [word for name, value in given.items() for word in (f"--{name}", str(value))]


def _content(file: IO[bytes]) -> str:
    """Read a file from its beginning, without moving where another process writes."""
    size = os.fstat(file.fileno()).st_size
    return os.pread(file.fileno(), size, 0).decode(errors="replace")
