"""Train a small convolutional net on scikit-learn's digits with DistributedDataParallel.

Start it with: torchrun --nproc-per-node 2 and the name of this file.
"""

from datetime import timedelta

import torch
import torch.distributed as dist
import torch.nn.functional as F
from evenstep.pytorch import Balancer
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils import data

EPOCHS = 5

dist.init_process_group("gloo", timeout=timedelta(seconds=60))
torch.set_num_threads(1)
torch.manual_seed(0)

digits = load_digits()
images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
samples = data.TensorDataset(images, torch.tensor(digits.target))
train, test = data.random_split(samples, [0.85, 0.15])

net = nn.Sequential(
    nn.Conv2d(1, 16, kernel_size=3, padding=1),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Conv2d(16, 32, kernel_size=3, padding=1),
    nn.ReLU(),
    nn.Flatten(),
    nn.Linear(32 * 4 * 4, 10),
)
model = DDP(net)
balancer = Balancer(model, total=64)
loader = balancer.loader(train)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

for epoch in range(EPOCHS):
    loader.sampler.set_epoch(epoch)
    for x, y in loader:
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

if dist.get_rank() == 0:
    with torch.no_grad():
        x, y = next(iter(data.DataLoader(test, batch_size=len(test))))
        accuracy = (net(x).argmax(dim=1) == y).float().mean()
    print(f"accuracy {accuracy:.1%} after {EPOCHS} epochs")
dist.destroy_process_group()
