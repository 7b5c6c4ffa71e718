"""Train a small transformer on paragraphs of unequal length, character by character.

The loss is a mean over characters, so it is weighed by them, and batches are balanced by them.

Start it with: torchrun --nproc-per-node 2 and the name of this file; --help lists the settings.
"""

import argparse
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from pydoc_data.topics import topics

import torch
import torch.distributed as dist
import torch.nn.functional as F
from evenstep.pytorch import Balancer
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.nn.utils.rnn import pad_sequence
from torch.utils import data

LONGEST = 256
PADDING = 0

parser = argparse.ArgumentParser(description="Train a small transformer on a text.")
parser.add_argument("--text", type=Path, help="a text file (default: Python's own manual)")
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--total", type=int, default=64, help="paragraphs of all workers together")
parser.add_argument("--accumulate", type=int, default=2, help="batches for one optimizer step")
parser.add_argument("--small", action="store_true", help="a tiny model on a little text")
parser.add_argument("--compile", action="store_true", help="use torch.compile, where it works")
parser.add_argument("--run-log", help="write a run log, for evenstep report")
args = parser.parse_args()


class Paragraphs(data.Dataset[torch.Tensor]):
    """The paragraphs of a text as numbers, one per character."""

    def __init__(self, text: str) -> None:
        parts = [part.encode("ascii", "replace")[: LONGEST + 1] for part in text.split("\n\n")]
        self._parts = [torch.tensor(list(part)) for part in parts if len(part) > 1]
        if args.small:
            self._parts = self._parts[:300]
        self.counts = [len(part) - 1 for part in self._parts]

    def __len__(self) -> int:
        return len(self._parts)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self._parts[index]


def collate(parts: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what is known and what is to be predicted, padded to the longest paragraph."""
    x, y = [part[:-1] for part in parts], [part[1:] for part in parts]
    return pad_sequence(x, True, PADDING), pad_sequence(y, True, PADDING)


class Transformer(nn.Module):
    """Predicts the next character from those before it."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.characters = nn.Embedding(256, width, padding_idx=PADDING)
        self.places = nn.Embedding(LONGEST, width)
        layer = nn.TransformerEncoderLayer(
            width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True
        )
        layers = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        # Batches are of all shapes.
        self.layers = torch.compile(layers, dynamic=True) if can_compile() else layers
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 256))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        # Padding comes last, so that nobody who counts can look at it.
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        h = self.characters(x) + self.places(torch.arange(x.shape[1]))
        logits: torch.Tensor = self.head(self.layers(h, mask=mask, is_causal=True))
        return logits


def can_compile() -> bool:
    """Whether torch.compile is wanted, and finds the compiler that it needs."""
    if not args.compile:
        return False
    try:
        torch.compile(lambda x: x + 1)(torch.ones(2))
    except Exception as error:
        print(f"going on without torch.compile: {type(error).__name__}")
        return False
    return True


dist.init_process_group("gloo", timeout=timedelta(seconds=120))
torch.set_num_threads(1)
torch.manual_seed(0)

train = Paragraphs(args.text.read_text() if args.text else "\n\n".join(topics.values()))
model = DDP(Transformer(32, 1) if args.small else Transformer(128, 4))
balancer = Balancer(model, args.total, log=args.run_log)
loader = balancer.loader(train, counts=train.counts, collate_fn=collate)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

for epoch in range(args.epochs):
    losses = []
    for i, (x, y) in enumerate(loader, start=1):
        is_step = i % args.accumulate == 0 or i == len(loader)
        with nullcontext() if is_step else model.no_sync():
            with torch.autocast("cpu", dtype=torch.bfloat16):
                logits = model(x)
            loss = F.cross_entropy(logits.flatten(0, 1).float(), y.flatten(), ignore_index=PADDING)
            count = (y != PADDING).sum()
            balancer.weigh(loss, count).backward()
        if is_step:
            losses.append(balancer.mean(loss, count))
            optimizer.step()
            optimizer.zero_grad()
    if dist.get_rank() == 0:
        print(f"epoch {epoch + 1}: loss {sum(losses) / len(losses):.3f} per character")

balancer.close()
dist.destroy_process_group()
