"""Evenstep for Lightning: one callback, and all workers finish an iteration together.

from evenstep.lightning import EvenstepCallback
trainer = Trainer(strategy="ddp", callbacks=[EvenstepCallback()])

The LightningModule and its data stay as they are. The Trainer may be that of `lightning.pytorch` or
of `pytorch_lightning`.
"""

from evenstep.lightning.callback import EvenstepCallback, make_callbacks

__all__ = ["EvenstepCallback", "make_callbacks"]
