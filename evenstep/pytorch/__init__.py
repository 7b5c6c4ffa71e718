"""Evenstep for PyTorch: three changed lines, and every worker finishes together.

from evenstep.pytorch import Balancer
balancer = Balancer(model, total=256)             # model: DistributedDataParallel
loader = balancer.loader(dataset, num_workers=2)  # instead of DistributedSampler + DataLoader

Where each worker has samples of its own, `balancer.local_loader(partition)` reads those. A model
with `fully_shard` (FSDP2) goes into a `ShardedBalancer`, and its loss through `weigh`.
"""

from evenstep.pytorch.background_processes import Serving
from evenstep.pytorch.balancer import Balancer
from evenstep.pytorch.loader import BalancedLoader
from evenstep.pytorch.local_loader import LocalLoader
from evenstep.pytorch.sharded import ShardedBalancer

__all__ = ["BalancedLoader", "Balancer", "LocalLoader", "Serving", "ShardedBalancer"]
