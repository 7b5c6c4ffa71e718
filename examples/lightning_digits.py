"""Train a small convolutional net on scikit-learn's digits with Lightning, on two workers.

Start it with: torchrun --nproc-per-node 2 and the name of this file.
"""

import lightning.pytorch as pl
import torch
import torch.nn.functional as F
from evenstep.lightning import EvenstepCallback
from sklearn.datasets import load_digits
from torch import nn
from torch.utils import data

EPOCHS = 5
Batches = data.DataLoader[tuple[torch.Tensor, ...]]


class Digits(pl.LightningModule):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(1, 16, kernel_size=3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 32, kernel_size=3, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(32 * 4 * 4, 10),
        )

    def training_step(self, batch: list[torch.Tensor]) -> torch.Tensor:
        x, y = batch
        loss = F.cross_entropy(self.net(x), y)
        self.log("loss", loss, on_epoch=True, sync_dist=True)
        return loss

    def validation_step(self, batch: list[torch.Tensor]) -> None:
        x, y = batch
        right = (self.net(x).argmax(dim=1) == y).float()
        self.log("accuracy", right.mean(), sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


class DigitsData(pl.LightningDataModule):  # type: ignore[misc]
    def setup(self, stage: str) -> None:
        digits = load_digits()
        images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
        samples = data.TensorDataset(images, torch.tensor(digits.target))
        split = torch.Generator().manual_seed(0)
        self.train, self.test = data.random_split(samples, [0.85, 0.15], split)

    def train_dataloader(self) -> Batches:
        return data.DataLoader(self.train, batch_size=32, shuffle=True)

    def val_dataloader(self) -> Batches:
        return data.DataLoader(self.test, batch_size=32)


pl.seed_everything(0)
torch.set_num_threads(1)
trainer = pl.Trainer(
    max_epochs=EPOCHS,
    accelerator="cpu",
    devices=2,
    strategy="ddp",
    callbacks=[EvenstepCallback()],
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(Digits(), DigitsData())
if trainer.is_global_zero:
    metrics = trainer.callback_metrics
    print(f"loss {metrics['loss_epoch']:.4f}, accuracy {metrics['accuracy']:.1%}", end=" ")
    print(f"after {EPOCHS} epochs")
# Otherwise threads of gloo may abort the process while it exits.
torch.distributed.destroy_process_group()
