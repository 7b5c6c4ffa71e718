"""A link: a pair of virtual Ethernet devices into a worker's namespace, with a token bucket."""

from __future__ import annotations

import subprocess
from shutil import which

from evenstep.errors import EvenstepError
from reproduction.netns.isolation import NEEDS

RATES = ("100mbit", "25mbit")
"""Of a link, and of a degraded one: a hundredth of the paper's 10 and 2.5 Gbit/s."""
DEGRADED = "M60"
"""The worker whose link is degraded during the run."""


def check_commands() -> None:
    """Raise EvenstepError if a command is missing that is needed to make links."""
    for command in ("ip", "tc", "nsenter"):
        if which(command) is None:
            raise EvenstepError(f"{command} must be installed, it was not found; {NEEDS}")


class Link:
    """The link of one worker, limited in both directions."""

    def __init__(self, number: int, pid: int) -> None:
        """`pid` is a process in the namespace at the other end."""
        self._near, self._far = f"v{number}", f"w{number}"
        self._inside = ("nsenter", "-t", pid, "-n")
        self.address, there = (f"10.77.{number}.{side}" for side in (1, 2))
        """Of the end that is here."""
        _run("ip", "link", "add", self._near, "type", "veth", "peer", self._far, "netns", pid)
        ends = ((self._near, self.address, ()), (self._far, there, self._inside))
        for device, address, inside in ends:
            _run(*inside, "ip", "address", "add", f"{address}/24", "dev", device)
            _run(*inside, "ip", "link", "set", device, "up")
        self._limit("add", RATES[0])

    def degrade(self) -> None:
        """Leave a quarter of the bandwidth."""
        self._limit("change", RATES[1])

    def _limit(self, how: str, rate: str) -> None:
        bucket = ("root", "tbf", "rate", rate, "burst", "16kb", "latency", "400ms")
        _run("tc", "qdisc", how, "dev", self._near, *bucket)
        _run(*self._inside, "tc", "qdisc", how, "dev", self._far, *bucket)


def _run(*command: object) -> None:
    words = [str(word) for word in command]
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        reason = done.stderr.strip()
        raise EvenstepError(f"{' '.join(words)} must succeed, got {reason!r}; {NEEDS}")
