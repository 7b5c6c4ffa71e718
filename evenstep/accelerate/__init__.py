"""Evenstep for Hugging Face Accelerate: one changed line, and the training of the stock script.

import evenstep.accelerate
model, optimizer, loader = evenstep.accelerate.prepare(accelerator, model, optimizer, loader)
"""

from evenstep.accelerate.loader import AcceleratedLoader
from evenstep.accelerate.prepare import prepare

__all__ = ["AcceleratedLoader", "prepare"]
