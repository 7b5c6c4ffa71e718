"""Train a small net on scikit-learn's digits, with batch sizes planned by a manager.

Start the manager first, with: evenstep manager
Then: torchrun --nproc-per-node 2 and the name of this file, and the manager's address if it is
another than 127.0.0.1:7411. `evenstep manager status` shows the job meanwhile.
"""

import sys
from datetime import timedelta

import evenstep
import torch
import torch.distributed as dist
import torch.nn.functional as F
from evenstep.pytorch import Balancer
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils import data

MANAGER = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:7411"
EPOCHS, TOTAL = 5, 64

dist.init_process_group("gloo", timeout=timedelta(seconds=60))
torch.set_num_threads(1)
torch.manual_seed(0)

digits = load_digits()
images = torch.tensor(digits.images, dtype=torch.float32).flatten(1) / 16
samples = data.TensorDataset(images, torch.tensor(digits.target))
net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
model = DDP(net)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

# The first worker creates the job; its settings hold for all plans. Names must last: after a
# restart, the manager knows a worker by its name.
client = evenstep.connect(
    MANAGER, "digits", f"worker-{dist.get_rank()}",
    workers=dist.get_world_size(), total=TOTAL, policy="proportional",
)  # fmt: skip
with client:  # leaves the job at the end
    balancer = Balancer(model, TOTAL, coordinator=client)
    loader = balancer.loader(samples)
    for epoch in range(EPOCHS):
        for x, y in loader:
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: plan {balancer.plan.number}, sizes {balancer.plan.sizes}")
    balancer.close()
if dist.get_rank() == 0:
    with torch.no_grad():
        accuracy = (net(images).argmax(dim=1) == torch.tensor(digits.target)).float().mean()
    print(f"accuracy {accuracy:.1%} on the samples that it was trained on")
dist.destroy_process_group()
