"""Train a small language model on windows of a long row of tokens, in the manner of nanoGPT.

Batches are made on the spot from random offsets, the next one before the backward pass of the
current one, and gradients are accumulated.

Start it with: torchrun --nproc-per-node 2 and the name of this file; --help lists the settings.
"""

import argparse
import math
import tempfile
from datetime import timedelta
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

BLOCK = 48
WARM_UP, HIGHEST_RATE, LOWEST_RATE = 10, 3e-3, 3e-4

parser = argparse.ArgumentParser(description="Train a small language model on Python's manual.")
parser.add_argument("--iterations", type=int, default=60)
parser.add_argument("--batch-size", type=int, default=8, help="windows of each worker")
parser.add_argument("--accumulate", type=int, default=3, help="batches for one optimizer step")
parser.add_argument("--evaluate-every", type=int, default=20, help="iterations")
parser.add_argument("--checkpoint", type=Path, help="where to save it, and where to resume from")
parser.add_argument("--dtype", choices=["float32", "float64"], default="float32")
args = parser.parse_args()

dist.init_process_group("gloo", timeout=timedelta(seconds=60))
torch.set_num_threads(1)
torch.manual_seed(0)
torch.set_default_dtype(getattr(torch, args.dtype))
rank, num_workers = dist.get_rank(), dist.get_world_size()
total = args.batch_size * num_workers

# Every worker reads the same tokens: here, the characters of Python's own manual.
folder = tempfile.TemporaryDirectory()
text = np.frombuffer("\n".join(topics.values()).encode("ascii", "replace"), dtype=np.uint8)
cut = len(text) * 9 // 10
for split, part in {"train": text[:cut], "val": text[cut:]}.items():
    part.tofile(Path(folder.name) / f"{split}.bin")
# The same on all workers, each of which takes its part of what is drawn.
draws = {split: torch.Generator().manual_seed(1337) for split in ("train", "val")}


def get_batch(split: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return windows of tokens, and the same windows one token later."""
    tokens = np.memmap(Path(folder.name) / f"{split}.bin", dtype=np.uint8, mode="r")
    offsets = torch.randint(len(tokens) - BLOCK, (total,), generator=draws[split])
    if split == "train":
        offsets = offsets[rank::num_workers]
    windows = np.stack([tokens[i : i + BLOCK + 1] for i in offsets])
    block = torch.from_numpy(windows.astype(np.int64))
    return block[:, :-1], block[:, 1:]


HIDDEN = torch.full((BLOCK, BLOCK), -math.inf).triu(1)
"""Later tokens, which must not be seen."""


class Transformer(nn.Module):
    """Predicts the next token of every window, and returns its loss with it."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.tokens = nn.Embedding(128, width)
        self.places = nn.Embedding(BLOCK, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = nn.Linear(width, 128)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        inputs = self.tokens(x) + self.places.weight
        logits = self.out(self.layers(inputs, mask=HIDDEN))
        return logits, F.cross_entropy(logits.flatten(0, 1), y.flatten())


net = Transformer()
model = DDP(net)
optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.95), eps=1e-4)
first = 0
if args.checkpoint is not None and args.checkpoint.exists():
    saved = torch.load(args.checkpoint)
    net.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    first = saved["iteration"]


def learning_rate(iteration: int) -> float:
    """Return the rate of an iteration: it rises at first, and then falls along a cosine."""
    if iteration < WARM_UP:
        return HIGHEST_RATE * (iteration + 1) / WARM_UP
    done = (iteration - WARM_UP) / max(1, args.iterations - WARM_UP)
    return LOWEST_RATE + 0.5 * (1 + math.cos(math.pi * done)) * (HIGHEST_RATE - LOWEST_RATE)


@torch.no_grad()
def estimate_loss(num_batches: int = 4) -> float:
    """Return the loss on text that is not trained on; one worker is enough for that."""
    net.eval()
    draws["val"].manual_seed(1337)
    losses: list[float] = [net(*get_batch("val"))[1].item() for _ in range(num_batches)]
    net.train()
    return sum(losses) / num_batches


def evaluate(iteration: int) -> None:
    """Print the loss and save a checkpoint, on one worker."""
    if rank > 0:
        return
    print(f"iteration {iteration}: loss {estimate_loss():.4f}")
    if args.checkpoint is not None:
        states = {"model": net.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save({**states, "iteration": iteration}, args.checkpoint)


x, y = get_batch("train")
for iteration in range(first, args.iterations):
    for group in optimizer.param_groups:
        group["lr"] = learning_rate(iteration)
    if iteration % args.evaluate_every == 0:
        evaluate(iteration)
    for micro_batch in range(args.accumulate):
        model.require_backward_grad_sync = micro_batch == args.accumulate - 1
        _, loss = model(x, y)
        x, y = get_batch("train")
        (loss / args.accumulate).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
evaluate(args.iterations)
folder.cleanup()
dist.destroy_process_group()
