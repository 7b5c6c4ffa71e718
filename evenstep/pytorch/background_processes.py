"""Background processes of a training: the agent of each worker, and one for each migration.

As separate processes they do not compete with the training for its interpreter, have a lower
priority, and can be stopped at any moment, as the records of hand-overs are on disk. Both run
`python -m evenstep.partitions.agents`, and end with the training process, however that ends.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import operator
import os
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import IO, Any

from evenstep.errors import EvenstepError
from evenstep.manager.access import format_address, parse_address
from evenstep.partitions.agents.settings import (
    BANDWIDTH,
    PATIENCE,
    AgentSettings,
    MigrationSettings,
)
from evenstep.partitions.handover.task import MigrationOutcome

StrPath = str | os.PathLike[str]

START = 60.0
"""Seconds within which an agent must listen."""

_NICE = 10
"""The priority of a migration; agents lower theirs by themselves."""
_GRACE = 5.0
"""Seconds that a process has to end after a signal."""


@dataclass(frozen=True)
class Serving:
    """How agents listen and find each other; `evenstep partition serve --help` has the options."""

    listen: str = "127.0.0.1:0"
    """An address of this machine that all other agents can reach; port 0 is any free port."""
    bandwidth: float | None = BANDWIDTH
    """Bytes of rows a second, each way; None for no limit."""
    token_file: StrPath | None = None
    tls_cert: StrPath | None = None
    tls_key: StrPath | None = None
    tls_ca: StrPath | None = None
    insecure: bool = False
    """Whether addresses other than loopback are allowed without a token and TLS."""
    patience: float = PATIENCE
    """Seconds without any progress after which a migration is cancelled."""

    @property
    def authority(self) -> StrPath | None:
        """The certificates to trust."""
        return self.tls_ca or self.tls_cert

    def agent(self, folder: Path) -> AgentSettings:
        """Return the settings of the agent of a partition."""
        return AgentSettings(
            folder=os.fspath(folder),
            listen=self.listen,
            bandwidth=self.bandwidth,
            token_file=_plain(self.token_file),
            tls_cert=_plain(self.tls_cert),
            tls_key=_plain(self.tls_key),
            tls_ca=_plain(self.tls_ca),
            insecure=self.insecure,
        )

    def migration(
        self, agents: Sequence[str], batch_sizes: Sequence[int], seed: int
    ) -> MigrationSettings:
        """Return the settings of a migration that makes partitions follow the batch sizes."""
        return MigrationSettings(
            agents=agents,
            batch_sizes=batch_sizes,
            seed=seed,
            patience=self.patience,
            token_file=_plain(self.token_file),
            tls_ca=_plain(self.authority),
        )


class AgentProcess:
    """The agent of a partition, which listens when the constructor returns."""

    def __init__(self, folder: Path, serving: Serving) -> None:
        self._settings = serving.agent(folder)
        self._process = _Process("serve", self._settings)
        try:
            self.bound: str = self._process.wait_for("listening", START)["address"]
            """Where it listens, in numbers."""
        except BaseException:
            self.close()
            raise
        # Certificates are for the name of a host more often than for its number.
        host, _ = parse_address(serving.listen)
        self.address = format_address(host, parse_address(self.bound)[1])
        """Where others find it: the host as it was given, and the port."""

    @property
    def pid(self) -> int:
        return self._process.pid

    def revive(self) -> None:
        """Start it again on the same address if it has died, without waiting until it listens."""
        if self._process.is_running:
            return
        self.close()
        again = replace(self._settings, listen=self.address)
        # Without an agent migrations fail, and training continues.
        with contextlib.suppress(OSError):
            self._process = _Process("serve", again)

    def close(self) -> None:
        """End the process; this also happens at exit."""
        self._process.close()


class MigrationProcess:
    """A migration in a background process; also one that could not be started."""

    def __init__(self, settings: MigrationSettings) -> None:
        self._process: _Process | None = None
        self._problem = ""
        try:
            self._process = _Process("migrate", settings)
            os.setpriority(os.PRIO_PROCESS, self._process.pid, _NICE)
        except OSError as error:
            self._problem = str(error)

    @property
    def outcome(self) -> MigrationOutcome | None:
        """The outcome, or None while the migration is running. This is cheap."""
        if self._process is None:
            return MigrationOutcome(0, (self._problem,), is_over=False)
        if self._process.is_running:
            return None
        found = self._process.reply("outcome")
        if found is None:
            return MigrationOutcome(0, (self._process.problem,), is_over=False)
        return MigrationOutcome(**found)

    def close(self) -> None:
        """Stop it where it is, if it is still running: the next manager continues from there."""
        if self._process is not None:
            self._process.close()


class _Process:
    """A process of `evenstep.partitions.agents`, which ends with this process."""

    def __init__(self, kind: str, settings: AgentSettings | MigrationSettings) -> None:
        with contextlib.ExitStack() as stack:
            self._replies: IO[bytes] = stack.enter_context(tempfile.TemporaryFile())
            self._log: IO[bytes] = stack.enter_context(tempfile.TemporaryFile())
            # A seed may be an integer of numpy, which JSON does not know.
            arguments = [kind, json.dumps(asdict(settings), default=operator.index)]
            self._process = subprocess.Popen(
                [sys.executable, "-m", "evenstep.partitions.agents", *arguments],
                stdin=subprocess.PIPE,
                stdout=self._replies,
                stderr=self._log,
                # It computes next to nothing.
                env=os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
            )
            self._files = stack.pop_all()
        atexit.register(self.close)
        # A loading process may outlive its killed parent, and would keep the pipe open.
        os.register_at_fork(after_in_child=partial(_close_pipe, weakref.ref(self)))

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def reply(self, kind: str) -> Any:
        """Return a reply of this kind, or None while there is none."""
        whole, _, _ = _content(self._replies).rpartition("\n")
        return next((reply[kind] for reply in _json_objects(whole) if kind in reply), None)

    @property
    def problem(self) -> str:
        """Why a process that has ended did not do its work."""
        lines = _content(self._log).strip().splitlines()
        last = lines[-1] if lines else f"exit code {self._process.poll()}"
        return str(self.reply("error") or last)

    def wait_for(self, kind: str, seconds: float) -> Any:
        """Return the reply of this kind; EvenstepError if the process ends, or takes too long."""
        until = time.monotonic() + seconds
        while (found := self.reply(kind)) is None:
            if not self.is_running:
                raise EvenstepError(f"the agent did not start: {self.problem}")
            if time.monotonic() > until:
                raise EvenstepError(f"the agent must listen after {seconds:g} s, got no reply")
            time.sleep(0.02)
        return found

    def close_pipe(self) -> None:
        """Close the pipe, at whose end the process ends."""
        if self._process.stdin is not None:
            self._process.stdin.close()

    def close(self) -> None:
        """End the process, and wait until it has."""
        atexit.unregister(self.close)
        self.close_pipe()
        if self.is_running:
            self._process.terminate()
            try:
                self._process.wait(_GRACE)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._files.close()


def _close_pipe(process: weakref.ref[_Process]) -> None:
    if (one := process()) is not None:
        one.close_pipe()


def _plain(path: StrPath | None) -> str | None:
    """Return a path as text, which JSON can hold."""
    return None if path is None else os.fspath(path)


def _json_objects(text: str) -> Iterator[dict[str, Any]]:
    """Return the JSON objects among the lines; a library may have printed others."""
    for line in text.splitlines():
        try:
            found = json.loads(line)
        except ValueError:
            continue
        if isinstance(found, dict):
            yield found


def _content(file: IO[bytes]) -> str:
    """Read a file from its beginning, without moving where another process writes."""
    size = os.fstat(file.fileno()).st_size
    return os.pread(file.fileno(), size, 0).decode(errors="replace")
