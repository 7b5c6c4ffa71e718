"""A balanced Trainer trains as the stock Trainer does, or stops with an error."""

import difflib
import re
from itertools import chain
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from accelerate.data_loader import BatchSamplerShard, DataLoaderShard
from accelerate.utils import DistributedType
from torch.utils.data import BatchSampler, SequentialSampler
from trl import DPOTrainer

from evenstep.core.rows import sealed
from evenstep.errors import InvalidSetting, StateFileError
from evenstep.transformers import balance
from evenstep.transformers.balance import BalancedTrainer, check_parallelism
from evenstep.transformers.balancing import read_state
from evenstep.transformers.stock_loader import StockOrder
from tests.examples import ROOT, run_on_two_workers
from tests.pytorch.setup import distance
from tests.trainers import hf_jobs
from tests.trainers.comparing import NUM_WORKERS, TABLE, TOTAL, above_the_optimum, assert_same

STOCK, BALANCED = "examples/hf_trainer_stock.py", "examples/hf_trainer.py"

pytestmark = pytest.mark.distributed

TIMEOUT = 60.0
TIMES = {
    f"{what}_{name}"
    for what in ("train", "eval")
    for name in ("runtime", "samples_per_second", "steps_per_second")
}
OF_PADDING = {"total_flos"}
"""Grows with the padding of batches, which depends on the samples of a worker."""

UNTIL_THE_50TH = {"num_train_epochs": 5}
CASES: dict[str, dict[str, Any]] = {
    "equal lengths": {**UNTIL_THE_50TH, "lengths": (8, 8)},
    "unequal lengths": UNTIL_THE_50TH,
    "accumulation, with a smaller last window": {
        "num_train_epochs": 10, "gradient_accumulation_steps": 3, "max_grad_norm": 0.1,
    },
    "grouped by length": {"num_train_epochs": 3, "train_sampling_strategy": "group_by_length"},
    "grouped by length, loading processes": {
        "num_train_epochs": 2, "train_sampling_strategy": "group_by_length",
        "dataloader_num_workers": 2, "gradient_accumulation_steps": 2,
    },
    "in order, without the last batch": {
        "num_train_epochs": 2, "train_sampling_strategy": "sequential",
        "dataloader_drop_last": True, "remove_unused_columns": True,
    },
    "in the middle of an epoch, with a schedule": {
        "max_steps": 15, "data_seed": 3, "lr_scheduler_type": "cosine", "warmup_steps": 3,
        "gradient_accumulation_steps": 2, "activation_checkpointing": True,
    },
    "smoothed labels": {"max_steps": 15, "label_smoothing_factor": 0.1},
    "split batches": {
        "max_steps": 15, "per_device_train_batch_size": TOTAL,
        "accelerator_config": {"split_batches": True},
    },
    "classes": {"max_steps": 15, "model": "classifier"},
    "classes, accumulation": {
        "max_steps": 15, "model": "classifier", "gradient_accumulation_steps": 2,
    },
    "classes, no common count": {
        "max_steps": 15, "model": "classifier", "average_tokens_across_devices": False,
    },
    "means over tokens, equal lengths": {"max_steps": 15, "model": "mean", "lengths": (8, 8)},
    "a divisor without a derivative": {"max_steps": 15, "model": "hidden"},
    "evaluation": {
        "max_steps": 10, "evaluates": True, "eval_strategy": "steps", "eval_steps": 5,
        "per_device_eval_batch_size": 4,
    },
    "trained twice": {"max_steps": 5, "times": 2},
}  # fmt: skip


def compare(answers, *, tolerance=None, compares_samples=True):
    """Compare parameters, samples, logs and states, given the outcomes of both workers."""
    stock, balanced = zip(*answers, strict=True)
    for outcome in balanced:
        if tolerance is None:
            assert_same(outcome.parameters, stock[0].parameters)
        else:
            assert distance(outcome.parameters, stock[0].parameters) <= tolerance
    if compares_samples:
        expected, got = joined(stock), joined(balanced)
        assert got == expected[: len(got)]
    compare_states([one.state for one in balanced], [one.state for one in stock])


def joined(outcomes):
    """Return the samples of each iteration, of all workers together."""
    return [sorted(chain(*each)) for each in zip(*[one.batches for one in outcomes], strict=True)]


def compare_states(balanced, stock):
    """Compare the states of all workers; losses are added up in float32."""
    for ours, theirs in zip(balanced, stock, strict=True):
        logs, expected = ours["log_history"], theirs["log_history"]
        assert [log.keys() for log in logs] == [log.keys() for log in expected]
        for log, other in zip(logs, expected, strict=True):
            for name in log.keys() - TIMES - OF_PADDING - {"train_loss"}:
                assert log[name] == pytest.approx(other[name], rel=1e-6), name
        for name in ours.keys() - OF_PADDING - {"log_history"}:
            assert ours[name] == theirs[name], name
    # To losses that were not logged, each stock worker adds its own, balanced ones their mean.
    losses = [
        [one["log_history"][-1]["train_loss"] for one in states] for states in (balanced, stock)
    ]
    assert losses[0] == pytest.approx([sum(losses[1]) / NUM_WORKERS] * NUM_WORKERS, rel=1e-6)


@pytest.mark.parametrize("case", CASES)
def test_trains_as_the_stock_trainer(workers, tmp_path, case):
    given = CASES[case]
    answers = workers.run(hf_jobs.both, folder=str(tmp_path), timeout=TIMEOUT, **given)
    named = not (given.get("dataloader_num_workers") or given.get("remove_unused_columns"))
    # An evaluation has its batches between the others, and a second training begins again.
    is_plain = named and not given.get("evaluates") and "times" not in given
    compare(answers, compares_samples=is_plain)
    sizes = [[len(batch) for batch in balanced.batches] for _, balanced in answers]
    if is_plain:
        accumulated = given.get("gradient_accumulation_steps", 1)
        expected = [TABLE[k // accumulated % len(TABLE)] for k in range(len(sizes[0]))]
        if accumulated == 1:
            assert list(zip(*sizes, strict=True)) == expected
        assert {sum(pair) for pair in zip(*sizes, strict=True)} == {TOTAL}
        assert len(set(sizes[0])) >= 5


def test_each_epoch_has_every_sample_once_and_its_first_ones_again(workers, tmp_path):
    answers = workers.run(hf_jobs.both, folder=str(tmp_path), timeout=TIMEOUT, num_train_epochs=2)
    batches = joined([balanced for _, balanced in answers])
    assert len(batches) == 20
    for epoch in (batches[:10], batches[10:]):
        counts = torch.bincount(torch.tensor(list(chain(*epoch))))
        assert counts.tolist().count(1) + 2 * counts.tolist().count(2) == 10 * TOTAL
        assert set(counts.tolist()) == {1, 2} and len(counts) == hf_jobs.SAMPLES


@pytest.mark.parametrize("by_counts", [False, True])
@pytest.mark.parametrize("accumulated", [1, 3])
def test_fine_tunes_as_the_stock_trainer_of_trl(workers, tmp_path, accumulated, by_counts):
    counts = list(range(1, hf_jobs.SAMPLES + 1))
    answers = workers.run(
        hf_jobs.both, folder=str(tmp_path), timeout=TIMEOUT, trainer="SFTTrainer", in_float64=True,
        max_steps=10, gradient_accumulation_steps=accumulated,
        options={"counts": counts} if by_counts else None,
    )  # fmt: skip
    compare(answers, compares_samples=False)


def test_fine_tunes_in_the_precision_of_trl(workers, tmp_path):
    given = {"trainer": "SFTTrainer", "max_steps": 10}
    answers = workers.run(hf_jobs.both, folder=str(tmp_path), timeout=TIMEOUT, **given)
    compare(answers, tolerance=1e-6, compares_samples=False)


@pytest.mark.parametrize(("accumulated", "strategy", "by_stock"), [
    (1, "random", False),
    (2, "random", False),
    (1, "group_by_length", False),
    (1, "random", True),
])  # fmt: skip
def test_resumes_exactly_in_mid_epoch(workers, tmp_path, accumulated, strategy, by_stock):
    stop, done = (14, 12) if accumulated == 1 else (7, 4)
    answers = workers.run(
        hf_jobs.resumed, folder=str(tmp_path), timeout=TIMEOUT, stop=stop, by_stock=by_stock,
        num_train_epochs=2, save_strategy="steps", save_steps=4, logging_steps=4,
        gradient_accumulation_steps=accumulated, train_sampling_strategy=strategy,
    )  # fmt: skip
    uninterrupted, stopped, resumed = zip(*answers, strict=True)
    for outcome in resumed:
        assert_same(outcome.parameters, uninterrupted[0].parameters)
    # It continues after the last checkpoint before the stop.
    samples, at = joined(uninterrupted), done * accumulated
    assert joined(stopped)[:at] == samples[:at]
    assert joined(resumed) == samples[at:]
    *logs, _ = resumed[0].state["log_history"]
    *expected, _ = uninterrupted[0].state["log_history"]
    assert [log["step"] for log in logs] == [log["step"] for log in expected]
    for name in ("loss", "learning_rate", "grad_norm", "epoch"):
        assert [log[name] for log in logs] == pytest.approx([log[name] for log in expected])
    assert (tmp_path / "balanced" / f"checkpoint-{done}" / "evenstep.pt").exists() != by_stock


def test_damaged_file_of_a_checkpoint_is_an_error_to_be_raised_on_all_workers(tmp_path):
    file = tmp_path / "evenstep.pt"
    state = sealed({"balancer": sealed({"iteration": 3, "total": TOTAL}), "loader": sealed({})})
    torch.save(state, file)
    assert read_state(file) == state
    whole = file.read_bytes()
    torch.save({**state, "loader": {}}, file)
    other = file.read_bytes()
    for content in (b"", b"text", whole[: len(whole) // 2], other):
        file.write_bytes(content)
        error = read_state(file)
        assert isinstance(error, StateFileError) and str(error).startswith(f"{file}: ")


@pytest.mark.parametrize("trainer", ["Trainer", "SFTTrainer"])
def test_sizes_come_to_the_optimum_of_emulated_speeds(workers, tmp_path, trainer):
    balanced, _ = workers.run(
        hf_jobs.train, folder=str(tmp_path), timeout=TIMEOUT, is_balanced=True, trainer=trainer,
        model="slow", max_steps=20, options={"policy": "equal_finish"},
    )  # fmt: skip
    assert sum(balanced.sizes) == TOTAL
    assert above_the_optimum(balanced.sizes) <= 1.1


REFUSALS: dict[str, tuple[dict[str, Any], str]] = {
    "a count of one worker": (
        {"average_tokens_across_devices": False},
        "average_tokens_across_devices must be True where losses are divided"),
    "a mean over unequal numbers of tokens": (
        {"model": "mean"}, "all samples must have the same number of labels"),
    "a loss that is divided in part": (
        {"model": "mixed"}, "must be divided by num_items_in_batch as a whole, or not at all"),
    "a sum": (
        {"loss": "sum", "lengths": (8, 8)}, "mean over the samples of this worker unless .* a sum"),
    "weights of classes": (
        {"model": "classifier", "loss": "weighed"}, "got another loss, as .* weights of classes"),
    "batches that are planned already": (
        {"train_sampling_strategy": "batch_rebalance"}, "got a BatchRebalanceSampler"),
    "uneven batches": (
        {"accelerator_config": {"even_batches": False}}, "even_batches must be True"),
    "one reader for all": (
        {"accelerator_config": {"dispatch_batches": True}}, "dispatch_batches must not be True"),
    "workers without samples": ({"options": {"minimum": 0}}, "minimum must be at least 1"),
    "a second total": ({"options": {"total": 32}}, "total must be left out under a Trainer"),
    "searched batch sizes": ({"auto_find_batch_size": True}, "auto_find_batch_size must be False"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSALS)
def test_refuses_what_would_not_be_right(workers, tmp_path, case):
    given, message = REFUSALS[case]
    failures = workers.failures(
        hf_jobs.train, folder=str(tmp_path), timeout=TIMEOUT, is_balanced=True, max_steps=10,
        **given,
    )  # fmt: skip
    assert {failure.kind for failure in failures} == {"InvalidSetting"}, failures
    for failure in failures:
        assert re.search(message, failure.message), failure


def test_declared_losses_are_taken_as_declared(workers, tmp_path):
    given = {"max_steps": 10, "loss": "sum", "options": {"loss": "sum"}}
    compare(workers.run(hf_jobs.both, folder=str(tmp_path), timeout=TIMEOUT, **given))


def test_single_process_stays_as_it_is(workers, tmp_path):
    name, apart = workers.run(hf_jobs.alone, folder=str(tmp_path), timeout=TIMEOUT, count=1)[0]
    assert (name, apart) == ("Trainer", 0.0)


def test_separate_workers_are_warned_of(workers, tmp_path):
    [message] = workers.run(hf_jobs.alone_under_torchrun, folder=str(tmp_path), count=1)
    assert "2 workers were started, but the Trainer of each trains alone" in message


@pytest.mark.parametrize(("used", "got"), [
    ({"is_fsdp_enabled": True}, "got FSDP"),
    ({"is_deepspeed_enabled": True}, "got DeepSpeed"),
    ({"get_tp_size": lambda: 2}, "got tensor parallelism"),
    ({"get_cp_size": lambda: 2, "get_sp_size": lambda: 2}, "context parallelism and sequence"),
    ({"accelerator": SimpleNamespace(distributed_type=DistributedType.XLA)}, "got XLA"),
])  # fmt: skip
def test_refuses_models_that_are_not_whole_on_each_worker(used, got):
    accelerator = SimpleNamespace(distributed_type=DistributedType.MULTI_GPU)
    whole = {"is_fsdp_enabled": False, "is_deepspeed_enabled": False, "accelerator": accelerator}
    sizes = {name: lambda: 1 for name in ("get_tp_size", "get_cp_size", "get_sp_size")}
    check_parallelism(SimpleNamespace(**whole, **sizes))
    with pytest.raises(InvalidSetting, match=got):
        check_parallelism(SimpleNamespace(**(whole | sizes | used)))


@pytest.mark.parametrize(("trainer", "message"), [
    (object(), "balance takes a Trainer of transformers, got object"),
    (object.__new__(DPOTrainer), "only SFTTrainer can be balanced, .* got DPOTrainer"),
    (object.__new__(BalancedTrainer), "this one is balanced already"),
])  # fmt: skip
def test_refuses_other_trainers(trainer, message):
    with pytest.raises(InvalidSetting, match=message):
        balance(trainer)


@pytest.mark.parametrize("num_workers", [2, 3])
@pytest.mark.parametrize("num_samples", [1, 5, 12, 17, 24, 25, 30])
@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("drop_last", [False, True])
def test_order_is_that_of_all_stock_loaders(num_workers, num_samples, split, drop_last):
    size = 4 * num_workers if split else 4
    batches = BatchSampler(SequentialSampler(range(num_samples)), size, drop_last)
    loaders = [
        DataLoaderShard(
            range(num_samples),
            batch_sampler=BatchSamplerShard(batches, num_workers, worker, split_batches=split),
        )
        for worker in range(num_workers)
    ]
    iterations = zip(*[loader.batch_sampler for loader in loaders], strict=True)
    expected = [sample for parts in iterations for part in parts for sample in part]
    order = StockOrder(loaders[0])
    assert list(order) == expected
    assert len(order) == len(expected)


def test_two_lines_make_the_difference_between_the_examples():
    names = STOCK, BALANCED
    stock, balanced = ((ROOT / name).read_text().splitlines(keepends=True) for name in names)
    _, _, *changes = difflib.unified_diff(stock, balanced, n=0)
    assert sum(line.startswith("+") for line in changes) == 2
    assert sum(line.startswith("-") for line in changes) == 1


@pytest.mark.timeout(250)
def test_examples_print_the_same_losses():
    given = ["--epochs", "2", "--paragraphs", "340", "--batch-size", "8"]
    done = [
        run_on_two_workers(STOCK, *given, tries=5, result=r"^update 20: loss"),
        run_on_two_workers(BALANCED, *given),
    ]
    line = re.compile(r"^update (\d+): loss ([\d.]+)$", re.MULTILINE)
    printed = [line.findall(one.stdout) for one in done]
    stock, balanced = printed
    assert [update for update, _ in stock] == ["10", "20"]
    assert [update for update, _ in balanced] == ["10", "20"]
    for (_, ours), (_, theirs) in zip(balanced, stock, strict=True):
        assert float(ours) == pytest.approx(float(theirs), abs=2e-4)
