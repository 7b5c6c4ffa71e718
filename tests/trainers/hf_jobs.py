"""Trainings with Trainer and SFTTrainer, stock and balanced, on tiny models in float64."""

from __future__ import annotations

import json
import os
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import datasets
import torch
import torch.distributed as dist
from accelerate.state import AcceleratorState, GradientState, PartialState
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.trainers import WordLevelTrainer
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedTokenizerFast,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)
from trl import SFTConfig, SFTTrainer

from evenstep.transformers import balance
from tests.trainers.comparing import NUM_WORKERS, SECONDS_PER_SAMPLE, TABLE, TOTAL
from tests.training.cycle import cycle

WORDS = 32
"""Of the vocabulary; the first three have a special meaning."""
SAMPLES = 149
"""No multiple of the total: the last iteration of an epoch is filled up with its first samples."""


class Outcome(NamedTuple):
    """What a training ends with on one worker."""

    parameters: torch.Tensor
    batches: list[list[int]]
    """The samples of each batch; SFTTrainer does not pass on which they are."""
    state: dict[str, Any]
    """What trainer_state.json has."""
    sizes: list[int] | None
    """The batch sizes of the last plan."""


# What is trained on what


class Texts(Dataset[dict[str, Any]]):
    """Texts of random words, whose labels are the words themselves, or one of three classes."""

    def __init__(self, shortest: int, longest: int, has_classes: bool) -> None:
        random = torch.Generator().manual_seed(3)
        lengths = torch.randint(shortest, longest + 1, (SAMPLES,), generator=random).tolist()
        self._texts = [torch.randint(3, WORDS, (n,), generator=random) for n in lengths]
        self._has_classes = has_classes

    def __len__(self) -> int:
        return len(self._texts)

    def __getitem__(self, index: int) -> dict[str, Any]:
        text = self._texts[index]
        labels = text.sum() % 3 if self._has_classes else text
        return {"input_ids": text, "labels": labels, "number": index}


class Collator:
    """Pads the texts of a batch, and notes which samples it has."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []

    def __call__(self, samples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        self.batches.append([sample.get("number", -1) for sample in samples])
        padded = pad_sequence([sample["input_ids"] for sample in samples], batch_first=True)
        labels = [sample["labels"] for sample in samples]
        joined = torch.stack(labels) if labels[0].dim() == 0 else pad_sequence(labels, True, -100)
        return {"input_ids": padded, "attention_mask": padded.ne(0).long(), "labels": joined}


class SlowLanguageModel(GPT2LMHeadModel):  # type: ignore[misc]
    """Sleeps in each training pass, in proportion to the emulated speed of this worker.

    Three times as long as others do, as the passes of the trainers themselves take a while.
    """

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        # TRL replaces the forward method of the whole model.
        self.transformer.register_forward_pre_hook(self._sleep, with_kwargs=True)

    def _sleep(self, module: Any, inputs: Any, named: Any) -> None:
        if self.training:
            samples = len(inputs[0] if inputs else named["input_ids"])
            time.sleep(3 * samples * SECONDS_PER_SAMPLE[dist.get_rank()])


class MeanLanguageModel(GPT2LMHeadModel):  # type: ignore[misc]
    """Returns a mean over the tokens of its batch, as older models do."""

    accepts_loss_kwargs = False


class HiddenDivisorModel(GPT2LMHeadModel):  # type: ignore[misc]
    """Divides its loss by a number of items that no derivative shows."""

    def forward(self, *inputs: Any, num_items_in_batch: Any = None, **named: Any) -> Any:
        number = None if num_items_in_batch is None else num_items_in_batch.item()
        return super().forward(*inputs, num_items_in_batch=number, **named)


class MixedLossModel(GPT2LMHeadModel):  # type: ignore[misc]
    """Adds a mean over samples to a loss that is divided by the number of items."""

    def forward(self, *inputs: Any, **named: Any) -> Any:
        outputs = super().forward(*inputs, **named)
        outputs.loss = outputs.loss + 0.01 * outputs.logits.square().mean()
        return outputs


def language_model(kind: type[Any] = GPT2LMHeadModel) -> Any:
    torch.manual_seed(7)
    config = GPT2Config(
        vocab_size=WORDS, n_positions=32, n_embd=16, n_layer=1, n_head=2, resid_pdrop=0.0,
        embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=1, eos_token_id=1, pad_token_id=0,
    )  # fmt: skip
    return kind(config).double()


def classifier() -> Any:
    torch.manual_seed(7)
    config = BertConfig(
        vocab_size=WORDS, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=32, max_position_embeddings=32, num_labels=3, hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0, pad_token_id=0,
    )  # fmt: skip
    return BertForSequenceClassification(config).double()


MODELS: dict[str, Callable[[], Any]] = {
    "language": language_model,
    "slow": lambda: language_model(SlowLanguageModel),
    "mean": lambda: language_model(MeanLanguageModel),
    "hidden": lambda: language_model(HiddenDivisorModel),
    "mixed": lambda: language_model(MixedLossModel),
    "classifier": classifier,
}


def sum_of_losses(outputs: Any, labels: torch.Tensor, num_items_in_batch: Any = None) -> Any:
    """Compute a loss that is a sum over the samples of a worker."""
    logits = outputs.logits[:, :-1].flatten(0, 1)
    return torch.nn.functional.cross_entropy(logits, labels[:, 1:].flatten(), reduction="sum")


def weighed_by_classes(outputs: Any, labels: torch.Tensor, num_items_in_batch: Any = None) -> Any:
    """Compute a mean over samples by the weights of their classes."""
    weight = torch.tensor([1.0, 2.0, 0.5], dtype=outputs.logits.dtype)
    return torch.nn.functional.cross_entropy(outputs.logits, labels, weight)


LOSSES = {"sum": sum_of_losses, "weighed": weighed_by_classes}


def tokenizer() -> PreTrainedTokenizerFast:
    """Train a tokenizer of whole words on the spot."""
    made = Tokenizer(WordLevel(unk_token="<unk>"))
    made.pre_tokenizer = Whitespace()
    words = " ".join(f"w{number}" for number in range(3, WORDS))
    specials = ["<pad>", "<eos>", "<unk>"]
    made.train_from_iterator([words], WordLevelTrainer(special_tokens=specials))
    return PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>"
    )


def prompts() -> datasets.Dataset:
    """Make prompts and completions of unequal lengths."""
    random = torch.Generator().manual_seed(3)

    def words() -> str:
        count = int(torch.randint(2, 12, (), generator=random))
        chosen = torch.randint(3, WORDS, (count,), generator=random).tolist()
        return " ".join(f"w{number}" for number in chosen)

    rows = [{"prompt": words(), "completion": words()} for _ in range(SAMPLES)]
    return datasets.Dataset.from_list(rows)


# Trainers


class Stop(TrainerCallback):  # type: ignore[misc]
    """Stops the training after an update, as if it had been killed."""

    def __init__(self, after: int | None) -> None:
        self._after = after

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        control.should_training_stop |= state.global_step == self._after


def settings_in(folder: str, given: dict[str, Any]) -> dict[str, Any]:
    return {
        "output_dir": folder, "per_device_train_batch_size": TOTAL // NUM_WORKERS,
        "learning_rate": 0.01, "use_cpu": True, "report_to": [], "logging_steps": 5,
        "save_strategy": "no", "disable_tqdm": True, "seed": 5, "dataloader_pin_memory": False,
        "remove_unused_columns": False, **given,
    }  # fmt: skip


def make_trainer(
    folder: str,
    model: str,
    lengths: tuple[int, int],
    loss: str | None,
    evaluates: bool,
    stop: int | None,
    given: dict[str, Any],
) -> Any:
    texts = Texts(*lengths, has_classes=model == "classifier")
    return Trainer(
        MODELS[model](),
        TrainingArguments(**settings_in(folder, given)),
        data_collator=Collator(),
        train_dataset=texts,
        eval_dataset=torch.utils.data.Subset(texts, range(40)) if evaluates else None,
        callbacks=[Stop(stop)],
        compute_loss_func=None if loss is None else LOSSES[loss],
    )


def make_sft_trainer(folder: str, model: str, given: dict[str, Any]) -> Any:
    settings = settings_in(folder, given) | {"remove_unused_columns": True}
    return SFTTrainer(
        MODELS[model](),
        SFTConfig(**settings, max_length=30, bf16=False),
        train_dataset=prompts(),
        processing_class=tokenizer(),
    )


def train(
    folder: str,
    is_balanced: bool,
    trainer: str = "Trainer",
    model: str = "language",
    lengths: tuple[int, int] = (3, 20),
    loss: str | None = None,
    evaluates: bool = False,
    stop: int | None = None,
    options: dict[str, Any] | None = None,
    resume: bool = False,
    times: int = 1,
    **given: Any,
) -> Outcome:
    """Train, by default on texts of unequal lengths; `given` are training arguments."""
    if trainer == "SFTTrainer":
        made = make_sft_trainer(folder, model, given)
    else:
        made = make_trainer(folder, model, lengths, loss, evaluates, stop, given)
    if is_balanced:
        unequal: dict[str, Any] = {"policy": cycle(*TABLE), "warm_up": 0, "summary": False}
        assert balance(made, **(unequal | (options or {}))) is made
    for _ in range(times):
        made.train(resume_from_checkpoint=resume)
    sizes = None
    if hasattr(made, "evenstep"):
        sizes = made.evenstep.balancer.newest_plan.sizes.tolist()
        made.evenstep.balancer.close()
    parameters = torch.cat([p.detach().flatten() for p in made.model.parameters()])
    made.state.save_to_json(f"{folder}-{dist.get_rank()}.json")
    state = json.loads(Path(f"{folder}-{dist.get_rank()}.json").read_text())
    return Outcome(parameters, getattr(made.data_collator, "batches", []), state, sizes)


@contextmanager
def float32_as_float64() -> Iterator[None]:
    """Compute in float64 what TRL computes in float32 for every model, its log-probabilities."""
    with (
        mock.patch.object(torch.Tensor, "float", torch.Tensor.double),
        mock.patch.object(torch, "float32", torch.float64),
    ):
        yield


def both(folder: str, in_float64: bool = False, **given: Any) -> tuple[Outcome, Outcome]:
    """Train with the stock trainer, and then balanced."""
    options = given.pop("options", None)

    def run() -> tuple[Outcome, Outcome]:
        stock = train(f"{folder}/stock", False, **given)
        return stock, train(f"{folder}/balanced", True, options=options, **given)

    if not in_float64:
        return run()
    with float32_as_float64():
        return run()


def resumed(folder: str, stop: int, by_stock: bool = False, **given: Any) -> list[Outcome]:
    """Train with the stock trainer to the end, and balanced with a stop in between.

    Or let the stock trainer come to the stop, and resume balanced.
    """
    uninterrupted = train(f"{folder}/stock", False, **given)
    stopped = train(f"{folder}/balanced", not by_stock, stop=stop, **given)
    return [uninterrupted, stopped, train(f"{folder}/balanced", True, resume=True, **given)]


def alone(folder: str) -> tuple[str, float]:
    """Train in a single process; return the class of the trainer, and the distance from stock."""
    with single_process():
        ours, stock = (make_lonely(f"{folder}/{half}") for half in ("ours", "stock"))
        balance(ours).train()
        stock.train()
    pairs = zip(ours.model.parameters(), stock.model.parameters(), strict=True)
    apart = max(float((one - other).detach().abs().max()) for one, other in pairs)
    return type(ours).__name__, apart


def alone_under_torchrun(folder: str) -> str:
    """Return the warning of a worker whose Trainer does not know of the other ones."""
    with single_process():
        made = make_lonely(folder)
        with mock.patch.dict(os.environ, WORLD_SIZE="2"), warnings.catch_warnings(record=True) as w:
            warnings.simplefilter("always")
            balance(made)
    return "".join(str(one.message) for one in w)


def make_lonely(folder: str) -> Any:
    return make_trainer(folder, "language", (3, 20), None, False, None, {"max_steps": 4})


@contextmanager
def single_process() -> Iterator[None]:
    """Let Accelerate look at its environment again, which is that of one process here."""
    states = AcceleratorState, GradientState, PartialState
    for state in states:
        state._reset_state()
    try:
        yield
    finally:
        for state in states:
            state._reset_state()
