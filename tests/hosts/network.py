"""Hosts for tests: Linux namespaces with names, addresses and links of their own.

A host has its own network, host name, process ids and /etc/hosts; the disk is that of this machine.
All hosts are on one switch, and two of them may have a further link. Nothing is visible outside:
addresses exist only between the hosts, and a host ends, with all of its processes, when the process
of the test does, however that ends.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from shutil import which
from typing import IO

ROOT = Path(__file__).parent.parent.parent
SWITCHED, DIRECT = "10.89.0", "10.89.1"
"""The networks of the switch and of the further link."""
COMMANDS = ("unshare", "nsenter", "ip", "tc", "mount", "hostname", "openssl")
_GRACE = 10.0


def obstacle() -> str:
    """Return why no hosts can be made here; empty if they can."""
    missing = [command for command in COMMANDS if which(command) is None]
    if missing:
        return f"hosts need {', '.join(missing)}, which are not installed (iproute2 has ip and tc)"
    try:
        with Host("probe") as host:
            host.run("ip", "link", "add", "probe", "type", "bridge")
            _pair(host, "one", host, "other")
            limit(host, "one", "1mbit")
    except (OSError, subprocess.SubprocessError) as error:
        return f"hosts need the right to make namespaces and links (usually root): {error}"
    return ""


class Host:
    """A host, up when the constructor returns; `close` ends all of its processes."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._started: list[subprocess.Popen[str]] = []
        # The first process of the host ends with this pipe, and the others end with it.
        self._holder = subprocess.Popen(
            ["unshare", "--net", "--uts", "--pid", "--mount", "--fork", "--mount-proc",
             "sh", "-c", f"hostname {name} && ip link set lo up && echo up && exec cat"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self._holder.stdout is not None and self._holder.stderr is not None
        if self._holder.stdout.readline() != "up\n":
            reason = self._holder.stderr.read().strip()
            self.close()
            raise OSError(reason)
        children = Path(f"/proc/{self._holder.pid}/task/{self._holder.pid}/children")
        self.pid = int(children.read_text())
        """The first process of the host, as this machine counts."""

    def command(self, *words: object) -> list[str]:
        """Return the command line that runs a command on the host."""
        target = ["nsenter", f"--target={self.pid}", "--net", "--uts", "--pid", "--mount"]
        return [*target, "env", "-C", str(ROOT), *map(str, words)]

    def run(self, *words: object) -> str:
        """Run a short command to its end, and return its output."""
        done = subprocess.run(
            self.command(*words), capture_output=True, text=True, timeout=_GRACE, check=False
        )
        if done.returncode:
            raise OSError(f"{' '.join(map(str, words))}: {done.stderr.strip()}")
        return done.stdout

    def start(self, *words: object, out: IO[str], **variables: str) -> subprocess.Popen[str]:
        """Start a program on the host, which ends with the host at the latest."""
        process = subprocess.Popen(
            self.command(*words), text=True,
            stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **variables},
        )  # fmt: skip
        self._started.append(process)
        return process

    def close(self) -> None:
        """Switch the host off."""
        assert self._holder.stdin is not None
        self._holder.stdin.close()
        try:
            self._holder.wait(_GRACE)
        except subprocess.TimeoutExpired:
            self._holder.kill()
            self._holder.wait()
        for stream in (self._holder.stdout, self._holder.stderr):
            assert stream is not None
            stream.close()
        for process in self._started:
            process.wait(_GRACE)

    def __enter__(self) -> Host:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class Network:
    """Hosts on a switch, the first two with a further link between them."""

    def __init__(self, switch: Host, hosts: dict[str, Host]) -> None:
        self._switch = switch
        self.hosts = hosts

    def cut(self, name: str) -> None:
        """Take the link between a host and the switch down: packets are lost without a reply."""
        self._switch.run("ip", "link", "set", "dev", f"to-{name}", "down")

    def join(self, name: str) -> None:
        """Bring the link of a host up again."""
        self._switch.run("ip", "link", "set", "dev", f"to-{name}", "up")


@contextmanager
def network(folder: Path, *names: str) -> Iterator[Network]:
    """Make hosts with these names, which they resolve; the further link has names with `-direct`.

    Interfaces are `eth0`, to the switch, and `eth1`, between the first two hosts.
    """
    table = folder / "etc-hosts"
    ends = list(enumerate(names, start=1))
    rows = ["127.0.0.1 localhost", *(f"{SWITCHED}.{number} {name}" for number, name in ends)]
    rows += [f"{DIRECT}.{number} {name}-direct" for number, name in ends[:2]]
    table.write_text("".join(f"{row}\n" for row in rows))
    with ExitStack() as stack:
        switch = stack.enter_context(Host("switch"))
        hosts = {name: stack.enter_context(Host(name)) for name in names}
        switch.run("ip", "link", "add", "bridge", "type", "bridge")
        switch.run("ip", "link", "set", "bridge", "up")
        for number, name in ends:
            host = hosts[name]
            host.run("mount", "--bind", table, "/etc/hosts")
            _pair(switch, f"to-{name}", host, "eth0")
            switch.run("ip", "link", "set", "dev", f"to-{name}", "master", "bridge", "up")
            _up(host, "eth0", f"{SWITCHED}.{number}")
        first, second = (hosts[name] for _, name in ends[:2])
        _pair(first, "eth1", second, "eth1")
        for number, host in enumerate((first, second), start=1):
            _up(host, "eth1", f"{DIRECT}.{number}")
        yield Network(switch, hosts)


def limit(host: Host, interface: str, rate: str) -> None:
    """Limit what a host sends on an interface, by a token bucket."""
    bucket = ("rate", rate, "burst", "16kb", "latency", "400ms")
    host.run("tc", "qdisc", "add", "dev", interface, "root", "tbf", *bucket)


def _pair(first: Host, name: str, second: Host, other: str) -> None:
    words = ["ip", "link", "add", "name", name, "netns", first.pid, "type", "veth"]
    words += ["peer", "name", other, "netns", second.pid]
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, timeout=_GRACE)
    if done.returncode:
        raise OSError(done.stderr.strip())


def _up(host: Host, interface: str, address: str) -> None:
    host.run("ip", "address", "add", f"{address}/24", "dev", interface)
    host.run("ip", "link", "set", interface, "up")
