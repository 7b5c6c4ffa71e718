"""A training loop for the tests: what differs between scripts goes around it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from evenstep.pytorch import BalancedLoader, Balancer
from tests.pytorch.setup import cycle, data, net, parameters

SIZES = [(4, 12), (15, 1), (8, 8), (1, 15), (9, 7)]
TOTAL, SAMPLES, EPOCHS = 16, 150, 2


class Loop:
    """A model with a balancer, by a list of sizes or as plain BSP, and an optimizer."""

    def __init__(self, table: Any, inner: nn.Module | None = None, **ddp: Any) -> None:
        inner = net(torch.float64) if inner is None else inner
        self.model = DistributedDataParallel(inner, **ddp)
        sizing: dict[str, Any] = {"policy": cycle(*table)} if table else {"mode": "off"}
        self.balancer = Balancer(self.model, TOTAL, summary=False, warm_up=0, **sizing)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.sizes: list[int] = []

    def loader(self, **settings: Any) -> BalancedLoader:
        return self.balancer.loader(data(SAMPLES, torch.float64), **settings)

    def batches(self, loader: BalancedLoader | None = None) -> Iterator[Any]:
        """Yield the batches of some epochs, and close the balancer after them."""
        loader = loader or self.loader()
        for _ in range(EPOCHS):
            for samples, labels in loader:
                self.sizes.append(len(samples))
                yield samples, labels
        self.balancer.close()

    def backward(self, samples: torch.Tensor, labels: torch.Tensor) -> None:
        cross_entropy(self.model(samples), labels).backward()

    def step(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()

    def train(self, samples: torch.Tensor, labels: torch.Tensor) -> None:
        self.backward(samples, labels)
        self.step()

    def result(self) -> tuple[torch.Tensor, list[int]]:
        return parameters(self.model), self.sizes
