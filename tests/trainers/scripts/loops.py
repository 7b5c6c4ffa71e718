"""Stock loops, one function each: ``loops.py NAME --out FILE`` trains in one of them."""

# As users write them.
# mypy: ignore-errors

import argparse
import contextlib
import tempfile

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    TensorDataset,
)

EPOCHS = 2


def samples(seed=1, count=149):
    made = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 6, generator=made, dtype=torch.float64)
    return TensorDataset(x, torch.randint(3, (count,), generator=made))


def loader_of(dataset, **options):
    return DataLoader(dataset, batch_size=8, sampler=DistributedSampler(dataset), **options)


def net(*more):
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3), *more).double()


def wrap(model=None, **options):
    return DistributedDataParallel(net() if model is None else model, **options)


def train(model, loader, loss_of=F.cross_entropy, epochs=EPOCHS):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(epochs):
        if isinstance(loader.sampler, DistributedSampler):
            loader.sampler.set_epoch(epoch)
        for x, y in loader:
            loss_of(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
    return model


# Those that can be balanced.


def without_set_epoch():
    model, loader = wrap(), loader_of(samples())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(EPOCHS):
        for x, y in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
    return model


def left_early():
    """Every epoch is left early, after other numbers of iterations."""
    model, loader = wrap(), loader_of(samples())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(4):
        loader.sampler.set_epoch(epoch)
        for step, (x, y) in enumerate(loader):
            if step == 1 + 2 * epoch:
                break
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
    return model


def fetching_ahead():
    """The next batch is fetched before the backward pass; inputs are copies."""
    model, loader = wrap(), loader_of(samples())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(EPOCHS):
        loader.sampler.set_epoch(epoch)
        batches = iter(loader)
        following = next(batches)
        while following is not None:
            x, y = (part.clone() for part in following)
            loss = F.cross_entropy(model(x), y)
            following = next(batches, None)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return model


def fetching_two_ahead(copied=False):
    """Two batches wait while one is trained on."""
    model, loader = wrap(), loader_of(samples())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(EPOCHS):
        loader.sampler.set_epoch(epoch)
        batches, waiting = iter(loader), []
        while True:
            while len(waiting) < 3 and (following := next(batches, None)) is not None:
                waiting.append(following)
            if not waiting:
                break
            x, y = (part.clone() if copied else part for part in waiting.pop(0))
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
    return model


def fetching_two_copies_ahead():
    """As on an accelerator: nothing tells which of the batches the model runs on."""
    return fetching_two_ahead(copied=True)


def two_passes_on_copies_fetched_ahead():
    """Two forward passes for each batch, which is a copy, with the next one fetched before."""
    model, loader = wrap(), loader_of(samples())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(EPOCHS):
        loader.sampler.set_epoch(epoch)
        batches = iter(loader)
        x, y = (part.clone() for part in next(batches))
        while x is not None:
            following = next(batches, (None, None))
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y) + F.cross_entropy(model(-x), y)
            loss.backward()
            optimizer.step()
            x, y = (part if part is None else part.clone() for part in following)
    return model


def skipping():
    """The first epoch begins in its middle, as after a restart; inputs are copies."""
    model, loader = wrap(), loader_of(samples())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(EPOCHS):
        loader.sampler.set_epoch(epoch)
        for step, (x, y) in enumerate(loader):
            if epoch == 0 and step < 3:
                continue
            optimizer.zero_grad()
            F.cross_entropy(model(x.clone()), y).backward()
            optimizer.step()
    return model


def accumulating():
    """Two batches make one exchange."""
    model, loader = wrap(), loader_of(samples())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(EPOCHS):
        loader.sampler.set_epoch(epoch)
        for step, (x, y) in enumerate(loader):
            syncs = step % 2 == 1
            with contextlib.nullcontext() if syncs else model.no_sync():
                (F.cross_entropy(model(x), y) / 2).backward()
            if syncs:
                optimizer.step()
                optimizer.zero_grad()
    return model


def loader_of_each_epoch():
    """Every epoch makes its own loader, with a sampler of its own."""
    model, dataset = wrap(), samples()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(EPOCHS):
        loader = loader_of(dataset)
        loader.sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
    return model


def evaluation_with_gradients():
    """The evaluation forgets no_grad, in mid-epoch, too, and runs on a stock loader."""
    model, loader, held_out = wrap(), loader_of(samples()), loader_of(samples(2, 40))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(EPOCHS):
        loader.sampler.set_epoch(epoch)
        for step, (x, y) in enumerate(loader):
            model.train()
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            if step % 4 == 3:
                model.eval()
                for u, v in held_out:
                    F.cross_entropy(model(u.clone()), v).item()
    return model


def evaluation_first():
    """As a sanity check, before any training; and on the bare model later."""
    model, loader, held_out = wrap(), loader_of(samples()), loader_of(samples(2, 40))
    with torch.no_grad():
        for u, _ in held_out:
            model(u.clone())
    for epoch in range(EPOCHS):
        loader.sampler.set_epoch(epoch)
        train(model, loader, epochs=1)
        with torch.no_grad():
            for u, _ in held_out:
                model.module(u)
    return model


def evaluation_on_one_worker():
    """Worker 0 evaluates alone, and looks at a batch that it does not train on."""
    model, loader, held_out = wrap(), loader_of(samples()), DataLoader(samples(2, 40), 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(EPOCHS):
        loader.sampler.set_epoch(epoch)
        for step, (x, y) in enumerate(loader):
            optimizer.zero_grad()
            F.cross_entropy(model(x.clone()), y).backward()
            optimizer.step()
            if step % 3 == 0 and dist.get_rank() == 0:
                next(iter(loader))
                with torch.no_grad():
                    for u, _ in held_out:
                        model.module(u.clone())
    return model


def compiled():
    model, loader = torch.compile(wrap(), backend="eager"), loader_of(samples())
    return train(model, loader)._orig_mod


def second_loader_of_other_size():
    """Alternates between two loaders, of which only the first has the balancer's total."""
    model, dataset = wrap(), samples(3, 64)
    first = loader_of(samples())
    second = DataLoader(dataset, batch_size=4, sampler=DistributedSampler(dataset))
    for _ in range(EPOCHS):
        train(model, first, epochs=1)
        train(model, second, epochs=1)
    return model


def second_loader_with_a_sum():
    """Alternates between two loaders of the same total; the loss of the second is a sum."""

    def loss_of(scores, y):
        return 0.05 * F.cross_entropy(scores, y, reduction="sum")

    model, first, second = wrap(), loader_of(samples()), loader_of(samples(3, 64))
    for _ in range(EPOCHS):
        train(model, first, epochs=1)
        train(model, second, loss_of, epochs=1)
    return model


def static_graph():
    return train(wrap(static_graph=True), loader_of(samples()))


def normalised():
    return train(wrap(net(nn.BatchNorm1d(3))), loader_of(samples()))


def unshuffled():
    dataset = samples()
    sampler = DistributedSampler(dataset, shuffle=False, drop_last=True)
    loader = DataLoader(dataset, batch_size=8, sampler=sampler, drop_last=True)
    return train(wrap(), loader)


# Balanced until a second model is made.


def second_model_later():
    first, loader = wrap(), loader_of(samples())
    train(first, loader, epochs=1)
    second = wrap()
    train(second, loader, epochs=1)
    train(first, loader, epochs=1)
    return nn.ModuleList([first.module, second.module])


# Those that cannot.


def sum_of_losses():
    def loss_of(scores, y):
        return 0.05 * F.cross_entropy(scores, y, reduction="sum")

    return train(wrap(), loader_of(samples()), loss_of)


def divided_by_a_number():
    def loss_of(scores, y):
        return F.cross_entropy(scores, y, reduction="sum") / len(y)

    return train(wrap(), loader_of(samples()), loss_of)


def weights_of_classes():
    def loss_of(scores, y):
        return F.cross_entropy(scores, y, weight=torch.tensor([1.0, 2.0, 3.0]).double())

    return train(wrap(), loader_of(samples()), loss_of)


def ignored_on_one_worker():
    """Only worker 1 sees that some targets do not count."""

    def loss_of(scores, y):
        is_ignored = (y == 0) & (dist.get_rank() == 1)
        return F.cross_entropy(scores, y.masked_fill(is_ignored, -100))

    return train(wrap(), loader_of(samples()), loss_of)


def no_sampler():
    made = torch.Generator().manual_seed(dist.get_rank())
    return train(wrap(), DataLoader(samples(), batch_size=8, shuffle=True, generator=made))


def batch_sampler():
    class Reversed(BatchSampler):
        def __iter__(self):
            return iter(list(super().__iter__())[::-1])

    dataset = samples()
    batches = Reversed(DistributedSampler(dataset), 8, drop_last=False)
    return train(wrap(), DataLoader(dataset, batch_sampler=batches))


def stream():
    class Stream(IterableDataset):
        def __iter__(self):
            return iter(list(samples())[dist.get_rank() :: 2][:64])

    return train(wrap(), DataLoader(Stream(), batch_size=8))


def joined():
    model, loader = wrap(), loader_of(samples())
    with model.join():
        return train(model, loader)


def sync_batch_norm():
    """It runs on GPUs only, so the model has one that it does not use."""
    model = wrap()
    model.normalisation = nn.SyncBatchNorm(3)
    return train(model, loader_of(samples()))


def own_hook():
    model = wrap()

    def hook(state, bucket):
        work = dist.all_reduce(bucket.buffer().div_(2), async_op=True)
        return work.get_future().then(lambda done: done.value()[0])

    model.register_comm_hook(None, hook)
    return train(model, loader_of(samples()))


def two_models():
    one, other, loader = wrap(), wrap(), loader_of(samples())
    optimizer = torch.optim.SGD([*one.parameters(), *other.parameters()], lr=0.1)
    for x, y in loader:
        optimizer.zero_grad()
        F.cross_entropy(one(x), y).backward()
        F.cross_entropy(other(x), y).backward()
        optimizer.step()
    return nn.ModuleList([one.module, other.module])


def two_loaders():
    model = wrap()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for (x, y), (u, v) in zip(loader_of(samples()), loader_of(samples(2, 80)), strict=False):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(torch.cat([x, u])), torch.cat([y, v]))
        loss.backward()
        optimizer.step()
    return model


def own_loader():
    class Doubled(DataLoader):
        def __iter__(self):
            for x, y in super().__iter__():
                yield 2 * x, y

    dataset = samples()
    return train(wrap(), Doubled(dataset, batch_size=8, sampler=DistributedSampler(dataset)))


def no_loader():
    model, (x, y) = wrap(), samples().tensors
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(5):
        optimizer.zero_grad()
        F.cross_entropy(model(x[8 * step :][:8]), y[8 * step :][:8]).backward()
        optimizer.step()
    return model


def sharded():
    from torch.distributed.fsdp import fully_shard

    model = net()
    fully_shard(model)
    train(model, loader_of(samples()))
    full = {name: value.full_tensor() for name, value in model.state_dict().items()}
    whole = net()
    whole.load_state_dict(full)
    return whole


def accelerated():
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    loader = DataLoader(samples(), batch_size=8, shuffle=True)
    torch.manual_seed(3)
    model, loader = accelerator.prepare(net(), loader)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(EPOCHS):
        for x, y in loader:
            optimizer.zero_grad()
            accelerator.backward(F.cross_entropy(model(x), y))
            optimizer.step()
    return model.module


def by_hugging_face():
    from transformers import PretrainedConfig, PreTrainedModel, Trainer, TrainingArguments

    class Model(PreTrainedModel):
        config_class = PretrainedConfig

        def __init__(self, config):
            super().__init__(config)
            self.net = net()
            self.post_init()

        def forward(self, x, labels):
            return {"loss": F.cross_entropy(self.net(x), labels)}

    model = Model(PretrainedConfig())
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder, per_device_train_batch_size=8, num_train_epochs=EPOCHS, use_cpu=True,
            save_strategy="no", report_to="none", disable_tqdm=True, logging_strategy="no",
        )  # fmt: skip
        data = [{"x": x, "labels": y} for x, y in samples()]
        Trainer(model, arguments, train_dataset=data).train()
    return model


def by_lightning():
    from lightning import pytorch as pl

    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = net()

        def training_step(self, batch, index):
            return F.cross_entropy(self.net(batch[0]), batch[1])

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    module = Module()
    trainer = pl.Trainer(
        accelerator="cpu", devices=2, strategy="ddp", max_epochs=EPOCHS, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(module, DataLoader(samples(), batch_size=8, shuffle=True))
    return module


def single_iteration():
    model = wrap()
    for x, y in loader_of(samples(count=16)):
        F.cross_entropy(model(x), y).backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    return model


class Pairs(Dataset):
    """A class of the script, which loading processes have to find."""

    def __init__(self):
        self.samples = samples()

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        return self.samples[index]


def loading_by_fork():
    options = {"num_workers": 2, "persistent_workers": True}
    return train(wrap(), loader_of(Pairs(), multiprocessing_context="fork", **options))


def loading_by_spawn():
    options = {"num_workers": 1, "persistent_workers": True}
    return train(wrap(), loader_of(Pairs(), multiprocessing_context="spawn", **options))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("name")
    parser.add_argument("--out", required=True)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    model = globals()[args.name]()
    if dist.get_rank() == 0:
        torch.save(model.state_dict(), args.out)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
