"""A script with Accelerate trains as its stock form does, with batches of unequal sizes."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from itertools import product, zip_longest
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    WeightedRandomSampler,
)

from evenstep.errors import InvalidSetting
from evenstep.pytorch import Balancer
from tests.damaged import check_refused, damaged, is_refused, resealed, same
from tests.examples import run_on_two_workers, unified_diff
from tests.pytorch.setup import data, net, parameters
from tests.trainers.comparing import (
    NUM_WORKERS,
    SECONDS_PER_SAMPLE,
    TABLE,
    TOTAL,
    Slow,
    above_the_optimum,
    assert_same,
)
from tests.training.cycle import cycle

pytestmark = pytest.mark.distributed

BATCH_SIZE = TOTAL // NUM_WORKERS
SAMPLES = 149
"""Nine iterations of 16 samples, and 5 more, which Accelerate fills up with 11 repeated ones."""
STOCK, BALANCED = "examples/accelerate_digits_stock.py", "examples/accelerate_digits.py"


def make_accelerator(**settings: Any) -> Any:
    """Make an accelerator that knows nothing of earlier jobs of this process."""
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState, GradientState
    from accelerate.utils import DataLoaderConfiguration, GradientAccumulationPlugin

    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    handlers = settings.pop("kwargs_handlers", None)
    accumulation = GradientAccumulationPlugin(
        num_steps=settings.pop("gradient_accumulation_steps", 1),
        sync_each_batch=settings.pop("sync_each_batch", False),
        sync_with_dataloader=settings.pop("sync_with_dataloader", True),
    )
    config = DataLoaderConfiguration(**settings)
    return Accelerator(
        cpu=True, dataloader_config=config, gradient_accumulation_plugin=accumulation,
        kwargs_handlers=handlers,
    )  # fmt: skip


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
    epochs: int = 2,
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


@pytest.mark.parametrize(("steps", "epochs"), [(1, 6), (4, 17)])
def test_parameters_and_metrics_are_those_of_the_stock_script(workers, steps, epochs):
    balanced = same_as_stock(workers, epochs=epochs, gradient_accumulation_steps=steps)
    assert balanced[0]["updates"] == epochs * -(-10 // steps) > 50


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
    "exchange of each batch": {"gradient_accumulation_steps": 4, "sync_each_batch": True},
    "windows over the ends of epochs": {
        "gradient_accumulation_steps": 4, "sync_with_dataloader": False,
    },
    "few samples": {"num_samples": 11, "gradient_accumulation_steps": 3},
}  # fmt: skip


@pytest.mark.parametrize("name", LOADERS)
def test_any_loader_has_the_samples_of_the_stock_script(workers, name):
    same_as_stock(workers, **LOADERS[name])


def train_seeded(is_balanced: bool, **loading: Any) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(17)
    return train(is_balanced, epochs=3, loading={"generator": generator, **loading})


@pytest.mark.parametrize("loading", [{}, {"num_workers": 1, "persistent_workers": True}])
def test_generator_of_a_loader_is_used_as_by_the_stock_script(workers, loading):
    same_as_stock(workers, train_seeded, **loading)


def train_sampled(is_balanced: bool) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(17)
    weights = torch.arange(1.0, SAMPLES + 1)
    sampler = WeightedRandomSampler(weights.tolist(), 100, generator=generator)
    return train(is_balanced, epochs=3, loading={"shuffle": None, "sampler": sampler})


def test_sampler_of_the_script_is_used_as_by_the_stock_script(workers):
    stock, balanced = (workers.run(train_sampled, is_balanced=b) for b in (False, True))
    for ours, theirs in zip(balanced, stock, strict=True):
        assert_same(ours["parameters"], theirs["parameters"])
        assert ours["length"] == theirs["length"] == 7
        # Accelerate takes the length of the data set for that of the sampler.
        assert sum(map(len, ours["gathered"])) == 3 * 100


class Script:
    """What most tests train: a model, an optimizer and loaders, prepared in one line."""

    def __init__(
        self,
        is_balanced: bool,
        dataset: Any = None,
        inner: nn.Module | None = None,
        settings: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        torch.manual_seed(3)
        self.accelerator = make_accelerator(**(settings or {}))
        model = net(torch.float64) if inner is None else inner
        dataset = data(SAMPLES, torch.float64) if dataset is None else dataset
        self.eval_loader: Any = DataLoader(data(21, torch.float64), BATCH_SIZE)
        self.loader: Any = DataLoader(dataset, BATCH_SIZE, shuffle=True)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        # In another order than the usual one.
        self.loader, self.optimizer, self.eval_loader, self.model = prepare(
            self.accelerator, is_balanced, self.loader, optimizer, self.eval_loader, model,
            **options,
        )  # fmt: skip

    def update(self, samples: torch.Tensor, labels: torch.Tensor) -> None:
        with self.accelerator.accumulate(self.model):
            self.accelerator.backward(cross_entropy(self.model(samples), labels))
            self.optimizer.step()
            self.optimizer.zero_grad()

    def end(self) -> torch.Tensor:
        close(self.loader)
        return parameters(self.model)


def assert_same_on_all(balanced: list[torch.Tensor], stock: list[torch.Tensor]) -> None:
    for ours, theirs in zip(balanced, stock, strict=True):
        assert_same(ours, theirs)


def leave_early(is_balanced: bool, seedable: bool) -> torch.Tensor:
    script = Script(is_balanced, settings={"use_seedable_sampler": seedable})
    next(iter(script.loader))
    for _ in range(2):
        for i, (samples, labels) in enumerate(script.loader):
            if i == 4:
                break
            script.update(samples, labels)
    for batch in script.loader:
        script.update(*batch)
    return script.end()


@pytest.mark.parametrize("seedable", [False, True])
def test_epochs_that_are_left_early_are_followed_as_by_the_stock_script(workers, seedable):
    stock = workers.run(leave_early, is_balanced=False, seedable=seedable)
    assert_same_on_all(workers.run(leave_early, is_balanced=True, seedable=seedable), stock)


def evaluate_in_between(is_balanced: bool) -> tuple[torch.Tensor, list[torch.Tensor]]:
    script, found = Script(is_balanced), []
    for i, batch in enumerate(script.loader):
        script.update(*batch)
        if i % 4 == 0:
            for samples, labels in script.eval_loader:
                with torch.no_grad():
                    guessed = script.model(samples).argmax(dim=1)
                found += script.accelerator.gather_for_metrics((guessed, labels))
    return script.end(), found


def test_evaluation_loader_stays_that_of_accelerate(workers):
    stock, balanced = (workers.run(evaluate_in_between, is_balanced=b) for b in (False, True))
    for (ours, metrics), (theirs, wanted) in zip(balanced, stock, strict=True):
        assert_same(ours, theirs)
        assert sum(map(len, metrics)) == 3 * 2 * 21
        assert all(map(torch.equal, metrics, wanted))


def skip(is_balanced: bool) -> tuple[torch.Tensor, list[int]]:
    script = Script(is_balanced, settings={"use_seedable_sampler": True})
    lengths = []
    for epoch, num_batches in ((2, 4), (3, 9), (4, 0)):
        script.loader.set_epoch(epoch)
        rest = script.accelerator.skip_first_batches(script.loader, num_batches)
        for batch in rest:
            script.update(*batch)
        lengths += [len(rest), len(script.loader)]
    return script.end(), lengths


def test_batches_are_skipped_as_by_the_stock_script(workers):
    stock, balanced = (workers.run(skip, is_balanced=b) for b in (False, True))
    for (ours, lengths), (theirs, wanted) in zip(balanced, stock, strict=True):
        assert_same(ours, theirs)
        assert lengths == wanted == [6, 10, 1, 10, 10, 10]


def skip_by_function() -> None:
    from accelerate import skip_first_batches

    skip_first_batches(Script(True).loader, 2)


def test_batches_are_not_skipped_behind_the_back_of_the_accelerator(workers):
    for failure in workers.failures(skip_by_function):
        assert failure.kind == "InvalidSetting"
        assert "call accelerator.skip_first_batches(loader, num_batches)" in failure.message


def name_the_training() -> list[str]:
    accelerator = make_accelerator()
    loaders = [DataLoader(data(32), BATCH_SIZE) for _ in range(3)]
    prepared = prepare(accelerator, True, *loaders, net(), train=loaders[1])
    close(prepared[1])
    return [type(one).__name__ for one in prepared]


def test_loader_of_the_training_can_be_named(workers):
    expected = ["DataLoaderShard", "AcceleratedLoader", "DataLoaderShard"]
    for names in workers.run(name_the_training):
        assert names == [*expected, "DistributedDataParallel"]


def see_each_sample(num_samples: int, **settings: Any) -> tuple[list[int], list[Any]]:
    """Return the samples of this worker, and what is gathered, as tensors and as objects."""
    from tests.pytorch.setup import Indices

    script = Script(True, Indices(num_samples), nn.Linear(1, 1), settings)
    seen, gathered, sizes = [], [], []
    indices, everything = torch.empty(0), []
    for indices, names in script.loader:
        loss = script.model(indices[:, None].float()).mean()
        script.accelerator.backward(loss)
        mine = indices.tolist()
        seen += mine
        sizes.append(len(mine))
        together = script.accelerator.gather_for_metrics({"index": indices, "loss": loss.detach()})
        assert len(together["loss"]) == min(NUM_WORKERS, len(together["index"]))
        named = script.accelerator.gather_for_metrics(names)
        assert named == [f"sample {i}" for i in together["index"].tolist()]
        gathered += together["index"].tolist()
        everything = script.accelerator.gather(indices).tolist()
    # After the loop too, when Accelerate knows of no loader.
    assert script.accelerator.gather(indices).tolist() == everything
    assert len(set(sizes)) > 3
    script.end()
    return seen, gathered


@pytest.mark.parametrize(
    ("settings", "repeated"),
    [({}, 11), ({"even_batches": False}, 0), ({"dispatch_batches": True}, 1)],
)
def test_each_sample_is_visited_and_gathered_once(workers, settings, repeated):
    answers = workers.run(see_each_sample, num_samples=SAMPLES, **settings)
    seen = sorted(index for indices, _ in answers for index in indices)
    assert len(seen) == SAMPLES + repeated and set(seen) == set(range(SAMPLES))
    for _, gathered in answers:
        assert sorted(gathered) == list(range(SAMPLES))


def gather_parts() -> None:
    script = Script(True)
    for samples, labels in script.loader:
        script.accelerator.gather(samples[1:])
        script.update(samples, labels)


def test_tensors_of_other_sizes_are_not_gathered(workers):
    for failure in workers.failures(gather_parts):
        assert failure.kind == "InvalidSetting"
        assert "got [3, 11] entries for batches of [4, 12] samples" in failure.message


def balance_unequal_speeds() -> list[int]:
    seconds = SECONDS_PER_SAMPLE[int(os.environ["RANK"])]
    script = Script(
        True, data(1000, torch.float64), Slow(net(torch.float64), seconds),
        policy="equal_finish", warm_up=2,
    )  # fmt: skip
    for _, batch in zip(range(40), script.loader, strict=False):
        script.update(*batch)
    sizes: list[int] = script.loader.balancer.plan.sizes.tolist()
    script.end()
    return sizes


def test_sizes_are_near_the_optimum_of_the_speeds(workers):
    first, second = workers.run(balance_unequal_speeds)
    assert first == second
    assert above_the_optimum(first) <= 1.1


def train_until(
    is_balanced: bool, folder: str, stop: int | None, resumes: bool, way: str, **settings: Any
) -> torch.Tensor:
    """Train three epochs; save a checkpoint after `stop` batches and end there, if it is given."""
    script = Script(is_balanced, settings={"gradient_accumulation_steps": 2, **settings})
    loader, num_batches = script.loader, 0
    if resumes:
        script.accelerator.load_state(folder)
        num_batches = int(Path(folder, "batches").read_text())
    length = len(loader)
    for epoch in range(num_batches // length, 3):
        batches = loader
        if way == "skip" and num_batches % length:
            batches = script.accelerator.skip_first_batches(loader, num_batches % length)
        if way == "set_epoch":
            loader.set_epoch(epoch)
        for batch in batches:
            script.update(*batch)
            num_batches += 1
            if num_batches == stop:
                script.accelerator.save_state(folder)
                Path(folder, "batches").write_text(str(num_batches))
                return script.end()
    return script.end()


@pytest.mark.parametrize(
    ("way", "stop", "settings"),
    [
        ("position", 14, {}),
        ("skip", 14, {}),
        ("set_epoch", 16, {"use_seedable_sampler": True}),
        ("skip", 20, {"use_stateful_dataloader": True}),
    ],
)
def test_checkpoint_continues_as_the_stock_script_without_a_break(
    workers, tmp_path, way, stop, settings
):
    given = {"folder": str(tmp_path), "way": way, **settings}
    stock = workers.run(train_until, is_balanced=False, stop=None, resumes=False, **given)
    workers.run(train_until, is_balanced=True, stop=stop, resumes=False, **given)
    continued = workers.run(train_until, is_balanced=True, stop=None, resumes=True, **given)
    assert_same_on_all(continued, stock)


def attack_state() -> None:
    """Load damaged states, between epochs and in mid-epoch."""
    script = Script(True)
    states = []
    for num_batches, batch in enumerate(script.loader):
        script.update(*batch)
        if num_batches in (2, 5):
            states.append(script.loader.state_dict())
            if num_batches == 5:
                break
    loader, (state, own) = script.loader, states
    loader.load_state_dict(own)
    check_refused(state, loader.load_state_dict, lambda: (loader.state_dict(), loader.iteration))
    for what, changed in damaged(state, seed=1):
        if is_refused(loader.load_state_dict, resealed(changed)):
            assert same(loader.state_dict(), own), what
        else:
            loader.load_state_dict(own)
    script.end()


def test_damaged_state_is_refused_as_a_whole(workers):
    workers.run(attack_state)


def test_single_process_is_left_to_accelerate(workers):
    stock, balanced = (
        workers.run(train, count=1, is_balanced=is_balanced, gradient_accumulation_steps=4)[0]
        for is_balanced in (False, True)
    )
    assert torch.equal(balanced["parameters"], stock["parameters"])
    assert balanced["length"] == stock["length"] == 19


def in_the_documented_order() -> tuple[int, list[bool]]:
    """Use a balancer without `prepare`; Accelerate passes its loader through."""
    accelerator = make_accelerator(gradient_accumulation_steps=2)
    model = net(torch.float64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = accelerator.prepare(model, optimizer)
    balancer = Balancer(model, TOTAL, policy=cycle(*TABLE), summary=False)
    mine = balancer.loader(data(SAMPLES, torch.float64))
    loader = accelerator.prepare(mine)
    syncs = []
    for samples, labels in loader:
        with accelerator.accumulate(model):
            accelerator.backward(cross_entropy(model(samples), labels))
            optimizer.step()
            optimizer.zero_grad()
        syncs.append(accelerator.sync_gradients)
    iterations = balancer.iteration
    balancer.close()
    assert loader is mine
    return iterations, syncs


def test_balancer_works_in_the_documented_order(workers):
    for iterations, syncs in workers.run(in_the_documented_order):
        assert iterations == 5 and syncs == [False, True] * 5


class Stream(IterableDataset[int]):
    """A data set without an index."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(32))


def refused(what: str) -> None:
    from accelerate.utils import DDPCommunicationHookType, DistributedDataParallelKwargs

    hook = DistributedDataParallelKwargs(comm_hook=DDPCommunicationHookType.FP16)
    accelerator = make_accelerator(kwargs_handlers=[hook] if what == "hook" else None)
    model = net()
    dataset: Any = data(32)
    loader = DataLoader(dataset, BATCH_SIZE)
    options: dict[str, Any] = {}
    if what == "total":
        options["total"] = 32
    elif what == "stream":
        loader = DataLoader(Stream(), BATCH_SIZE)
    elif what == "sampler":
        loader = DataLoader(dataset, BATCH_SIZE, sampler=DistributedSampler(dataset))
    elif what == "batches":
        loader = DataLoader(dataset, batch_sampler=[[0, 1], [2]])
    elif what == "prepared":
        loader = accelerator.prepare(loader)
    objects: dict[str, list[Any]]
    objects = {"no loader": [model], "no model": [loader], "two": [model, net(), loader]}
    prepare(accelerator, True, *objects.get(what, [model, loader]), **options)


REFUSALS = {
    "hook": "pass yours as Balancer(..., comm_hook=(state, hook))",
    "total": "total must be left out, as it is the batch size of the DataLoader",
    "stream": "must be map-style (with __getitem__ and __len__), got a Stream",
    "sampler": "got a DistributedSampler: leave it out",
    "batches": "must be those of torch's BatchSampler",
    "prepared": "got one that Accelerate has prepared",
    "no loader": "must include the DataLoader of the training, got Sequential",
    "no model": "exactly one model that is trained, got 0",
    "two": "exactly one model that is trained, got 2",
}


@pytest.mark.parametrize("what", REFUSALS)
def test_what_cannot_be_balanced_is_refused(workers, what):
    for failure in workers.failures(refused, what=what):
        assert failure.kind == "InvalidSetting", failure
        assert REFUSALS[what] in failure.message


@pytest.mark.parametrize("kind", ["DEEPSPEED", "MEGATRON_LM", "FSDP", "XLA"])
def test_accelerators_without_ddp_are_refused(kind):
    from accelerate.utils import DistributedType

    from evenstep.accelerate.prepare import check_accelerator

    accelerator = SimpleNamespace(distributed_type=DistributedType[kind], parallelism_config=None)
    with pytest.raises(InvalidSetting, match=rf"uses DistributedDataParallel.* got {kind}: leave"):
        check_accelerator(accelerator)


@pytest.mark.parametrize("sizes", [{"tp_size": 2}, {"cp_size": 2}, {"dp_shard_size": 2}])
def test_meshes_other_than_of_data_are_refused(sizes):
    from accelerate.utils import DistributedType, ParallelismConfig

    from evenstep.accelerate.prepare import check_accelerator

    accelerator = SimpleNamespace(
        distributed_type=DistributedType.MULTI_GPU, parallelism_config=ParallelismConfig(**sizes)
    )
    [name] = sizes
    with pytest.raises(InvalidSetting, match=rf"got a mesh of {name.removesuffix('_size')}: leave"):
        check_accelerator(accelerator)


@pytest.mark.parametrize("is_split", [False, True])
@pytest.mark.parametrize("is_even", [False, True])
def test_order_is_that_of_the_batches_that_accelerate_deals_out(is_split, is_even):
    from accelerate.data_loader import BatchSamplerShard

    from evenstep.accelerate.order import StockOrder

    for num_workers, batch_size, num_samples, drop_last in product(
        (2, 3, 4), (2, 3), (1, 5, 12, 13, 17, 25, 36), (False, True)
    ):
        size = batch_size * num_workers if is_split else batch_size
        batches = BatchSampler(range(100, 100 + num_samples), size, drop_last)
        parts = [
            list(BatchSamplerShard(batches, num_workers, i, is_split, is_even))
            for i in range(num_workers)
        ]
        dealt = [i for of_all in zip_longest(*parts, fillvalue=[]) for one in of_all for i in one]
        total = batch_size * num_workers
        order = StockOrder(batches, total if is_even and not drop_last else 1)
        order.draw()
        assert len(list(order)) == len(order)
        kept = num_samples // total * total if drop_last else len(order)
        assert list(order)[:kept] == dealt


def test_three_lines_of_the_example_make_the_difference():
    _, _, *changes = unified_diff((STOCK, BALANCED))
    assert sum(line.startswith("+") for line in changes) == 3
    assert sum(line.startswith("-") for line in changes) == 2


@pytest.mark.example
@pytest.mark.timeout(180)
def test_example_learns_as_its_stock_form_does():
    # Only the stock script is tried again if it aborts at its exit.
    done = [run_on_two_workers(STOCK, "--cpu", tries=3), run_on_two_workers(BALANCED, "--cpu")]
    stock, balanced = (
        [float(part) for part in re.findall(r"^accuracy ([\d.]+)% after", one.stdout, re.MULTILINE)]
        for one in done
    )
    assert len(stock) == 5 and stock[-1] > 90
    # Single precision may decide on one of 269 images.
    assert balanced == pytest.approx(stock, abs=0.5)
