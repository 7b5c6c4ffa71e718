"""Train a small language model on paragraphs of unequal length, with the Trainer of Hugging Face.

The model is made from its configuration, and its tokens are characters, so nothing is downloaded.

Start it with: torchrun --nproc-per-node 2 and the name of this file; --help lists the settings.
"""

import argparse
import tempfile
from pydoc_data.topics import topics

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

LONGEST = 128
PADDING = 0

parser = argparse.ArgumentParser(description="Train a small language model on Python's manual.")
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--batch-size", type=int, default=16, help="paragraphs of each worker")
parser.add_argument("--accumulate", type=int, default=2, help="batches for one update")
parser.add_argument("--paragraphs", type=int, default=1000)
args = parser.parse_args()

paragraphs = "\n\n".join(topics.values()).split("\n\n")
encoded = [part.encode("ascii", "replace")[:LONGEST] for part in paragraphs if len(part) > 1]
dataset = [{"input_ids": list(part)} for part in encoded[: args.paragraphs]]


def collate(samples: list[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
    """Pad the paragraphs of a batch; the loss leaves the padding out."""
    tokens = pad_sequence([torch.tensor(sample["input_ids"]) for sample in samples], True, PADDING)
    is_text = tokens != PADDING
    labels = tokens.masked_fill(~is_text, -100)
    return {"input_ids": tokens, "attention_mask": is_text.long(), "labels": labels}


torch.manual_seed(0)
config = GPT2Config(
    vocab_size=128, n_positions=LONGEST, n_embd=64, n_layer=2, n_head=4, resid_pdrop=0.0,
    embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=10, eos_token_id=10, pad_token_id=PADDING,
)  # fmt: skip
with tempfile.TemporaryDirectory() as folder:
    trainer = Trainer(
        model=GPT2LMHeadModel(config),
        args=TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=args.batch_size,
            gradient_accumulation_steps=args.accumulate,
            num_train_epochs=args.epochs,
            learning_rate=3e-3,
            logging_steps=10,
            save_strategy="no",
            disable_tqdm=True,
            report_to=[],
            # Otherwise workers without a GPU train alone, each for itself.
            use_cpu=not torch.cuda.is_available(),
            dataloader_pin_memory=torch.cuda.is_available(),
        ),
        data_collator=collate,
        train_dataset=dataset,
    )
    trainer.train()

if trainer.is_world_process_zero():
    *logged, _ = trainer.state.log_history
    for log in logged:
        print(f"update {log['step']}: loss {log['loss']:.4f}")
if torch.distributed.is_initialized():
    torch.distributed.destroy_process_group()
