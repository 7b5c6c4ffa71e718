"""A stock script in the shape of minGPT-ddp: hydra, an evaluation loader, scaling, clipping.

The model stays in training mode, and both loaders have a DistributedSampler: only the gradients
that are switched on in the function of a batch tell training from evaluation.
"""

# As users write them.
# mypy: ignore-errors
# ruff: noqa: N817

import os

import hydra
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler


class CharDataset(Dataset):
    def __init__(self, size, block_size, vocab_size, seed):
        made = torch.Generator().manual_seed(seed)
        self.text = torch.randint(vocab_size, (size + block_size,), generator=made)
        self.size, self.block_size = size, block_size

    def __len__(self):
        return self.size

    def __getitem__(self, i):
        chunk = self.text[i : i + self.block_size + 1]
        return chunk[:-1], chunk[1:]


class GPT(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.tok = nn.Embedding(cfg.vocab_size, cfg.n_embd)
        self.pos = nn.Parameter(torch.zeros(1, cfg.block_size, cfg.n_embd))
        self.qkv = nn.Linear(cfg.n_embd, 3 * cfg.n_embd, bias=False)
        self.ln = nn.LayerNorm(cfg.n_embd)
        self.head = nn.Linear(cfg.n_embd, cfg.vocab_size, bias=False)
        self.register_buffer("mask", torch.tril(torch.ones(cfg.block_size, cfg.block_size)))

    def forward(self, idx, targets=None):
        x = self.tok(idx) + self.pos
        q, k, v = self.qkv(self.ln(x)).chunk(3, dim=-1)
        att = (q @ k.transpose(1, 2)).masked_fill(self.mask == 0, float("-inf")).softmax(-1)
        logits = self.head(x + att @ v)
        loss = None
        if targets is not None:
            flat = logits.view(-1, logits.size(-1))
            loss = F.cross_entropy(flat, targets.reshape(-1), ignore_index=-1)
        return logits, loss


class Trainer:
    def __init__(self, cfg, model, train_dataset, test_dataset):
        self.config = cfg
        self.global_rank = int(os.environ["RANK"])
        self.train_loader = self._prepare_dataloader(train_dataset)
        self.test_loader = self._prepare_dataloader(test_dataset)
        self.scaler = torch.amp.GradScaler("cpu", enabled=cfg.use_amp)
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        self.model = DDP(model)
        self.test_losses = []

    def _prepare_dataloader(self, dataset):
        sampler = DistributedSampler(dataset)
        return DataLoader(dataset, batch_size=self.config.batch_size, sampler=sampler)

    def _run_batch(self, source, targets, train=True):
        with torch.set_grad_enabled(train):
            _, loss = self.model(source, targets)
        if train:
            self.optimizer.zero_grad(set_to_none=True)
            self.scaler.scale(loss).backward()
            self.scaler.unscale_(self.optimizer)
            norm = self.config.grad_norm_clip
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), norm)
            self.scaler.step(self.optimizer)
            self.scaler.update()
        return loss.item()

    def _run_epoch(self, epoch, dataloader, train=True):
        dataloader.sampler.set_epoch(epoch)
        losses = []
        for step, (source, targets) in enumerate(dataloader):
            batch_loss = self._run_batch(source, targets, train)
            losses.append(batch_loss)
            if step % 5 == 0 and self.global_rank == 0:
                kind = "Train" if train else "Eval"
                print(f"Epoch {epoch} | Iter {step} | {kind} Loss {batch_loss:.5f}")
        return losses

    def train(self):
        for epoch in range(self.config.max_epochs):
            self._run_epoch(epoch, self.train_loader, train=True)
            self.test_losses += self._run_epoch(epoch, self.test_loader, train=False)


@hydra.main(version_base=None, config_path=".", config_name="mingpt")
def main(cfg):
    dist.init_process_group("gloo")
    torch.manual_seed(7)
    model = GPT(cfg.gpt_config).double()
    sizes = cfg.gpt_config.block_size, cfg.gpt_config.vocab_size
    train_set = CharDataset(cfg.trainer_config.samples, *sizes, seed=1)
    test_set = CharDataset(40, *sizes, seed=2)
    trainer = Trainer(cfg.trainer_config, model, train_set, test_set)
    trainer.train()
    if trainer.global_rank == 0:
        state = {**model.state_dict(), "test_losses": torch.tensor(trainer.test_losses)}
        torch.save(state, cfg.out)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
