"""Train a small convolutional net on scikit-learn's digits with Accelerate.

Start it with: torchrun --nproc-per-node 2 and the name of this file; without GPUs, add --cpu.
"""

import sys

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from sklearn.datasets import load_digits
from torch import nn
from torch.utils import data

EPOCHS = 5

accelerator = Accelerator(cpu="--cpu" in sys.argv, gradient_accumulation_steps=2)
torch.set_num_threads(1)
set_seed(0)

digits = load_digits()
images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
samples = data.TensorDataset(images, torch.tensor(digits.target))
train, test = data.random_split(samples, [0.85, 0.15])

model = nn.Sequential(
    nn.Conv2d(1, 16, kernel_size=3, padding=1),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Conv2d(16, 32, kernel_size=3, padding=1),
    nn.ReLU(),
    nn.Flatten(),
    nn.Linear(32 * 4 * 4, 10),
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
loader = data.DataLoader(train, batch_size=32, shuffle=True)
test_loader = data.DataLoader(test, batch_size=32)
scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=EPOCHS * len(loader))
model, optimizer, loader, test_loader, scheduler = accelerator.prepare(
    model, optimizer, loader, test_loader, scheduler
)

for epoch in range(EPOCHS):
    model.train()
    for x, y in loader:
        with accelerator.accumulate(model):
            accelerator.backward(F.cross_entropy(model(x), y))
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()

    model.eval()
    correct = 0
    for x, y in test_loader:
        with torch.no_grad():
            guessed, wanted = accelerator.gather_for_metrics((model(x).argmax(dim=1), y))
        correct += int((guessed == wanted).sum())
    accelerator.print(f"accuracy {correct / len(test):.1%} after {epoch + 1} epochs")
accelerator.end_training()
