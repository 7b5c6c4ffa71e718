"""A script with Accelerate trains as its stock form does, with batches of unequal sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

from tests.pytorch.setup import data, net, parameters
from tests.trainers.comparing import NUM_WORKERS, TABLE, TOTAL, assert_same
from tests.training.cycle import cycle

pytestmark = pytest.mark.distributed

BATCH_SIZE = TOTAL // NUM_WORKERS
SAMPLES = 149
"""Nine iterations of 16 samples, and 5 more, which Accelerate fills up with 11 repeated ones."""
EPOCHS = 6


def make_accelerator(**settings: Any) -> Any:
    """Make an accelerator that knows nothing of earlier jobs of this process."""
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState, GradientState
    from accelerate.utils import DataLoaderConfiguration

    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    steps = settings.pop("gradient_accumulation_steps", 1)
    config = DataLoaderConfiguration(**settings)
    return Accelerator(cpu=True, dataloader_config=config, gradient_accumulation_steps=steps)


def prepare(accelerator: Any, is_balanced: bool, *objects: Any, **options: Any) -> Any:
    if not is_balanced:
        return accelerator.prepare(*objects)
    import evenstep.accelerate

    given = {"policy": cycle(*TABLE), "summary": False, "warm_up": 0, **options}
    return evenstep.accelerate.prepare(accelerator, *objects, **given)


def close(loader: Any) -> None:
    if hasattr(loader, "balancer"):
        loader.balancer.close()


def train(
    is_balanced: bool,
    num_samples: int = SAMPLES,
    batch_size: int = BATCH_SIZE,
    epochs: int = EPOCHS,
    loading: dict[str, Any] | None = None,
    **settings: Any,
) -> dict[str, Any]:
    """Train as an example of Accelerate does."""
    torch.manual_seed(3)
    accelerator = make_accelerator(**settings)
    model = net(torch.float64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=200)
    loading = {"shuffle": True, **(loading or {})}
    loader = DataLoader(data(num_samples, torch.float64), batch_size, **loading)
    model, optimizer, loader, scheduler = prepare(
        accelerator, is_balanced, model, optimizer, loader, scheduler
    )
    updates, gathered, syncs = 0, [], []
    for _ in range(epochs):
        for samples, labels in loader:
            with accelerator.accumulate(model):
                outputs = model(samples)
                accelerator.backward(cross_entropy(outputs, labels))
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                    updates += 1
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            syncs.append(accelerator.sync_gradients)
            gathered.append(accelerator.gather_for_metrics(samples))
    close(loader)
    return {
        "parameters": parameters(model),
        "updates": updates,
        "syncs": syncs,
        "gathered": gathered,
        "length": len(loader),
        "rate": scheduler.get_last_lr(),
    }


def same_as_stock(workers: Any, job: Callable[..., Any] = train, **settings: Any) -> Any:
    stock = workers.run(job, is_balanced=False, **settings)
    balanced = workers.run(job, is_balanced=True, **settings)
    for ours, theirs in zip(balanced, stock, strict=True):
        assert_same(ours["parameters"], theirs["parameters"])
        for name in ("updates", "syncs", "length", "rate"):
            assert ours[name] == theirs[name], name
        for mine, wanted in zip(ours["gathered"], theirs["gathered"], strict=True):
            torch.testing.assert_close(mine, wanted, rtol=0, atol=0)
    return balanced


@pytest.mark.parametrize("steps", [1, 4])
def test_parameters_and_metrics_are_those_of_the_stock_script(workers, steps):
    balanced = same_as_stock(workers, gradient_accumulation_steps=steps)
    assert balanced[0]["updates"] == EPOCHS * -(-10 // steps)


LOADERS: dict[str, dict[str, Any]] = {
    "seedable": {"use_seedable_sampler": True},
    "split": {"split_batches": True, "batch_size": TOTAL},
    "dispatched": {"dispatch_batches": True},
    "dispatched and split": {
        "dispatch_batches": True, "split_batches": True, "batch_size": TOTAL, "num_samples": 151,
    },
    "without padding": {"even_batches": False, "num_samples": 160},
    "drop_last": {"loading": {"drop_last": True}},
    "in order": {"loading": {"shuffle": False}},
    "loading process": {"loading": {"num_workers": 1}, "gradient_accumulation_steps": 2},
    "few samples": {"num_samples": 11, "gradient_accumulation_steps": 3},
}  # fmt: skip


@pytest.mark.parametrize("name", LOADERS)
def test_any_loader_has_the_samples_of_the_stock_script(workers, name):
    same_as_stock(workers, epochs=2, **LOADERS[name])


def train_seeded(is_balanced: bool, **settings: Any) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(17)
    return train(is_balanced, epochs=3, loading={"generator": generator}, **settings)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_generator_of_a_loader_is_used_as_by_the_stock_script(workers, num_workers):
    same_as_stock(workers, train_seeded)
