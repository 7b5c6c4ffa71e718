"""Evenstep for PyTorch: three changed lines, and every worker finishes together.

from evenstep.pytorch import Balancer
balancer = Balancer(model, total=256)             # model: DistributedDataParallel
loader = balancer.loader(dataset, num_workers=2)  # instead of DistributedSampler + DataLoader
"""

from evenstep.pytorch.balancer import Balancer
from evenstep.pytorch.loader import BalancedLoader

__all__ = ["BalancedLoader", "Balancer"]
