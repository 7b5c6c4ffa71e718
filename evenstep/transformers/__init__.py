"""Evenstep for the Trainer of Hugging Face and TRL's SFTTrainer, with one call.

from evenstep.transformers import balance
trainer = balance(Trainer(model, args, train_dataset=dataset))
trainer.train()
"""

from evenstep.transformers.balance import balance

__all__ = ["balance"]
