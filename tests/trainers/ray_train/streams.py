"""A training function that reads the rows of a Ray Data dataset."""

from __future__ import annotations

from typing import Any

import numpy as np
import ray.data
import ray.train
import ray.train.torch
import torch
import torch.nn.functional as F

from evenstep.pytorch import Balancer
from evenstep.ray_train import prepare
from tests.pytorch.setup import data, net, parameters
from tests.trainers.comparing import TOTAL
from tests.trainers.ray_train.local import save
from tests.trainers.ray_train.loops import CHANGING, error_of, optimizer_of

ROWS, EPOCHS = 146, 2


def dataset() -> Any:
    """Return a Ray Data dataset of the samples, in some blocks."""
    x, y = data(ROWS, torch.float64).tensors
    rows = [
        {"index": i, "x": np.asarray(features), "y": int(label)}
        for i, (features, label) in enumerate(zip(x, y, strict=True))
    ]
    return ray.data.from_items(rows, override_num_blocks=10)


def read_rows(config: dict[str, Any]) -> None:
    """Train on a dataset in all the ways that there are; save the rows of each iteration."""
    shard = ray.train.get_dataset_shard("train")
    save(config["folder"], "errors", error_of(shard.iter_torch_batches(), {"total": TOTAL}))
    save(config["folder"], "rows", train(shard))
    save(config["folder"], "first", train(shard, stop="first"))
    save(config["folder"], "dealt", deal_rows())


def train(shard: Any, **options: Any) -> tuple[list[list[list[int]]], torch.Tensor]:
    """Train on the rows that Ray deals to each worker."""
    model, loader = prepare(net(torch.float64), shard, total=TOTAL, **options, **CHANGING)
    optimizer, epochs = optimizer_of(model), []
    for _ in range(EPOCHS):
        rows = []
        for batch in loader:
            F.cross_entropy(model(batch["x"]), batch["y"]).backward()
            optimizer.step()
            optimizer.zero_grad()
            weightless = loader.balancer._loop.share.samples == 0
            rows.append([] if weightless else batch["index"].tolist())
        epochs.append(rows)
    return epochs, parameters(model)


def deal_rows() -> torch.Tensor:
    """Train on a dataset that is not split: all workers read it, and each takes its part."""
    model = ray.train.torch.prepare_model(net(torch.float64))
    balancer = Balancer(model, TOTAL, **CHANGING)
    optimizer = optimizer_of(model)
    whole = ray.train.get_dataset_shard("whole")
    for _ in range(EPOCHS):
        for batch in whole.iter_torch_batches(batch_size=TOTAL):
            part = balancer.deal(torch.arange(len(batch["y"])))
            F.cross_entropy(model(batch["x"][part]), batch["y"][part]).backward()
            optimizer.step()
            optimizer.zero_grad()
    balancer.close()
    return parameters(model)
