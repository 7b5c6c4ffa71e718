"""Trainings with the Trainer and SFTTrainer, stock and balanced, on tiny models in float64."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import datasets
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.trainers import WordLevelTrainer
from torch.utils.data import Dataset
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedTokenizerFast,
    Trainer,
    TrainingArguments,
)

from evenstep.transformers import balance
from tests.trainers.comparing import NUM_WORKERS, TABLE, TOTAL
from tests.training.cycle import cycle

VOCABULARY = 32
SAMPLES = 149
"""No multiple of the total: the last iteration of an epoch is filled up by its first samples."""


class Texts(Dataset[dict[str, Any]]):
    """Random texts with labels; each sample says which one it is."""

    def __init__(self, shortest: int, longest: int, classes: int | None = None) -> None:
        random = torch.Generator().manual_seed(3)
        lengths = torch.randint(shortest, longest + 1, (SAMPLES,), generator=random).tolist()
        self.texts = [torch.randint(1, VOCABULARY, (n,), generator=random) for n in lengths]
        self.classes = classes

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, index: int) -> dict[str, Any]:
        text = self.texts[index]
        labels = text if self.classes is None else int(text.sum()) % self.classes
        return {"input_ids": text, "labels": labels, "number": index}


class Collator:
    """Pads the texts of a batch, and notes which samples it has."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []

    def __call__(self, samples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        self.batches.append([sample.get("number", -1) for sample in samples])
        texts = [sample["input_ids"] for sample in samples]
        padded = torch.nn.utils.rnn.pad_sequence(texts, batch_first=True)
        labels = [sample["labels"] for sample in samples]
        if isinstance(labels[0], torch.Tensor):
            given = torch.nn.utils.rnn.pad_sequence(labels, batch_first=True, padding_value=-100)
        else:
            given = torch.tensor(labels)
        return {"input_ids": padded, "attention_mask": padded.ne(0).long(), "labels": given}


def language_model() -> GPT2LMHeadModel:
    torch.manual_seed(7)
    config = GPT2Config(
        vocab_size=VOCABULARY, n_positions=32, n_embd=16, n_layer=1, n_head=2, resid_pdrop=0.0,
        embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=1, eos_token_id=1, pad_token_id=0,
    )  # fmt: skip
    return GPT2LMHeadModel(config).double()


def classifier() -> BertForSequenceClassification:
    torch.manual_seed(7)
    config = BertConfig(
        vocab_size=VOCABULARY, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=32, max_position_embeddings=32, num_labels=3, hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0, pad_token_id=0,
    )  # fmt: skip
    return BertForSequenceClassification(config).double()


class Outcome(NamedTuple):
    """What a training ends with on one worker."""

    parameters: torch.Tensor
    batches: list[list[int]]
    state: dict[str, Any]


def arguments(folder: Path, **given: Any) -> dict[str, Any]:
    return {
        "output_dir": str(folder), "per_device_train_batch_size": TOTAL // NUM_WORKERS,
        "learning_rate": 0.01, "use_cpu": True, "report_to": [], "logging_steps": 3,
        "save_strategy": "no", "disable_tqdm": True, "seed": 5, "max_grad_norm": 1.0,
        "dataloader_pin_memory": False, "remove_unused_columns": False, **given,
    }  # fmt: skip


MODELS = {"language": language_model, "classifier": classifier}


def train(
    folder: str,
    is_balanced: bool,
    model: str = "language",
    lengths: tuple[int, int] = (8, 8),
    options: dict[str, Any] | None = None,
    resume: Any = None,
    **given: Any,
) -> Outcome:
    collator = Collator()
    made = MODELS[model]()
    trainer = Trainer(
        made,
        TrainingArguments(**arguments(Path(folder), **given)),
        data_collator=collator,
        train_dataset=Texts(*lengths, classes=3 if model == "classifier" else None),
    )
    if is_balanced:
        settings: Any = {"policy": cycle(*TABLE), "summary": False, "warm_up": 0}
        trainer = balance(trainer, **settings, **(options or {}))
    return finish(trainer, made, collator, resume)


def tokenizer() -> PreTrainedTokenizerFast:
    """Train a tokenizer of whole words on the spot."""
    made = Tokenizer(WordLevel({"<pad>": 0, "<eos>": 1, "<unk>": 2}, unk_token="<unk>"))
    made.pre_tokenizer = Whitespace()
    words = [f"w{number}" for number in range(VOCABULARY - 3)]
    specials = ["<pad>", "<eos>", "<unk>"]
    made.train_from_iterator([" ".join(words)], WordLevelTrainer(special_tokens=specials))
    return PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>"
    )


def fine_tune(
    folder: str, is_balanced: bool, options: dict[str, Any] | None = None, **given: Any
) -> Outcome:
    """Train with SFTTrainer, on prompts with completions of unequal lengths."""
    from trl import SFTConfig, SFTTrainer

    random = torch.Generator().manual_seed(3)
    lengths = torch.randint(2, 12, (SAMPLES, 2), generator=random).tolist()

    def words(count: int) -> str:
        chosen = torch.randint(0, VOCABULARY - 3, (count,), generator=random).tolist()
        return " ".join(f"w{number}" for number in chosen)

    rows = [{"prompt": words(a), "completion": words(b)} for a, b in lengths]
    model = language_model()
    settings: Any = arguments(Path(folder), **given) | {"remove_unused_columns": True}
    trainer = SFTTrainer(
        model,
        SFTConfig(**settings, max_length=30, bf16=False),
        train_dataset=datasets.Dataset.from_list(rows),
        processing_class=tokenizer(),
    )
    if is_balanced:
        balance(trainer, policy=cycle(*TABLE), summary=False, warm_up=0, **(options or {}))
    return finish(trainer, model, Collator(), None)


def both_fine_tuned(folder: str, **given: Any) -> tuple[Outcome, Outcome]:
    import os
    from unittest import mock
    real = torch.float32
    if os.environ.get("PATCHF"):
        mock.patch.object(torch.Tensor, "float", torch.Tensor.double).start()
        mock.patch.object(torch, "float32", torch.float64).start()
    stock = fine_tune(f"{folder}/stock", False, **given)
    return stock, fine_tune(f"{folder}/balanced", True, **given)


def finish(trainer: Any, model: Any, collator: Any, resume: Any) -> Outcome:
    trainer.train(resume_from_checkpoint=resume)
    if hasattr(trainer, "evenstep"):
        trainer.evenstep.balancer.close()
    parameters = torch.cat([p.detach().flatten() for p in model.parameters()])
    state = json.loads(json.dumps(vars(trainer.state), default=str))
    return Outcome(parameters, collator.batches, state)


def both(folder: str, **given: Any) -> tuple[Outcome, Outcome]:
    stock = train(f"{folder}/stock", False, **given)
    return stock, train(f"{folder}/balanced", True, **given)
