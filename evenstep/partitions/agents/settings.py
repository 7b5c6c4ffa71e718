"""Settings of agents and migrations, in plain values that can travel to another process as JSON.

Nothing here needs Thrift: the command line and a training check their settings without it. Both
classes check their numbers by the rules of the command line, as JSON does not pass through it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from evenstep.core.short_form import require_positive, require_whole

DEFAULT_PORT = 7414
DEFAULT_ADDRESS = f"127.0.0.1:{DEFAULT_PORT}"
BANDWIDTH = 5e6
"""Bytes of rows a second, each way, by default: an agent then takes some 3 % of a core."""
NICE = 15
"""With it a thread gets 3 % of a core that another thread wants for itself."""
PATIENCE = 60.0
"""Seconds without any progress after which a migration is cancelled, by default."""


@dataclass(frozen=True)
class AgentSettings:
    """How the agent of a partition runs."""

    folder: str
    """Of the partition."""
    listen: str = DEFAULT_ADDRESS
    """An address of this machine; port 0 is any free one."""
    bandwidth: float | None = BANDWIDTH
    """Bytes of rows a second, each way; None for no limit."""
    nice: int = NICE
    """By how much the agent lowers its priority, 0 to 19."""
    quota: int | None = None
    """A new quota of the partition, in bytes; None keeps the one it has."""
    token_file: str | None = None
    """The token that all agents share."""
    tls_cert: str | None = None
    tls_key: str | None = None
    tls_ca: str | None = None
    """Certificates of other agents to trust; `tls_cert` by default."""
    insecure: bool = False
    """Whether addresses other than loopback are allowed without a token and TLS."""

    def __post_init__(self) -> None:
        if self.bandwidth is not None:
            require_positive("bandwidth of an agent", self.bandwidth)
        require_whole("nice of an agent", self.nice, least=0)
        if self.quota is not None:
            require_whole("quota of an agent", self.quota)


@dataclass(frozen=True)
class MigrationSettings:
    """Which samples move between the partitions of agents, and how the manager reaches these."""

    agents: Sequence[str]
    """Addresses by which the agents can reach each other."""
    batch_sizes: Sequence[int] | None = None
    """One per agent: partition sizes follow them; None moves nothing between those that stay."""
    leaving: Sequence[str] = ()
    """Partitions to divide among the others."""
    lost: Sequence[str] = ()
    """Partitions whose disks are lost for good: open hand-overs with them end first."""
    minimum: int = 1
    """Samples that every partition keeps."""
    seed: int = 0
    chunk_size: int | None = None
    """Samples per chunk; None for chunks of about 1 MiB."""
    dry_run: bool = False
    compact: bool = False
    """Whether the rows of samples that have left are deleted afterwards."""
    patience: float = PATIENCE
    token_file: str | None = None
    tls_ca: str | None = None
    """Certificates to trust; turns TLS on."""

    def __post_init__(self) -> None:
        require_whole("minimum of a migration", self.minimum)
        require_whole("seed of a migration", self.seed, least=0)
        if self.chunk_size is not None:
            require_whole("chunk_size of a migration", self.chunk_size)
        require_positive("patience of a migration", self.patience)
