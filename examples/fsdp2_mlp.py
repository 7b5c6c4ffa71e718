"""Train a small net on scikit-learn's digits with its parameters sharded over the workers (FSDP2).

Start it with: torchrun --nproc-per-node 2 and the name of this file.
"""

from datetime import timedelta

import torch
import torch.distributed as dist
import torch.nn.functional as F
from evenstep.pytorch import ShardedBalancer
from sklearn.datasets import load_digits
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils import data

EPOCHS = 5


def build_net() -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(64, 256),
        nn.ReLU(),
        nn.Linear(256, 256),
        nn.ReLU(),
        nn.Linear(256, 10),
    )


def loss_of(net: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    x, y = batch
    return F.cross_entropy(net(x), y)


dist.init_process_group("gloo", timeout=timedelta(seconds=60))
torch.set_num_threads(1)
torch.manual_seed(0)

digits = load_digits()
images = torch.tensor(digits.data, dtype=torch.float32) / 16
train = data.TensorDataset(images, torch.tensor(digits.target))

model = build_net()
for layer in model:
    if isinstance(layer, nn.Linear):
        fully_shard(layer)
fully_shard(model)

balancer = ShardedBalancer(model, total=64)
balancer.calibrate(build_net, loss_of, train)
loader = balancer.loader(train)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

for epoch in range(EPOCHS):
    losses = []
    for batch in loader:
        loss = loss_of(model, batch)
        balancer.weigh(loss).backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(balancer.mean(loss))
    if dist.get_rank() == 0:
        sizes = "/".join(map(str, balancer.plan.sizes.tolist()))
        print(f"epoch {epoch}: batch sizes {sizes}, loss {sum(losses) / len(losses):.3f}")
dist.destroy_process_group()
