"""Evenstep for PyTorch: with three changed lines, all workers finish an iteration together.

from evenstep.pytorch import Balancer
balancer = Balancer(model, total=256)             # model: DistributedDataParallel
loader = balancer.loader(dataset, num_workers=2)  # instead of DistributedSampler + DataLoader

If each worker has its own samples, `balancer.local_loader(partition)` reads them. A model with
`fully_shard` (FSDP2) takes a `ShardedBalancer`, and its loss goes through `weigh`.
"""

from evenstep.pytorch.background_processes import Serving
from evenstep.pytorch.balancer import Balancer
from evenstep.pytorch.loader import BalancedLoader
from evenstep.pytorch.local_loader import LocalLoader
from evenstep.pytorch.sharded import ShardedBalancer
from evenstep.pytorch.stream_loader import StreamLoader

__all__ = [
    "BalancedLoader",
    "Balancer",
    "LocalLoader",
    "Serving",
    "ShardedBalancer",
    "StreamLoader",
]
