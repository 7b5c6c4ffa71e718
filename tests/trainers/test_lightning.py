"""Lightning: a Trainer with the callback trains, logs and resumes as the stock Trainer does."""

from __future__ import annotations

import difflib
import re
import warnings
from importlib.metadata import EntryPoint
from itertools import chain
from statistics import median
from typing import Any

import numpy as np
import pytest

with warnings.catch_warnings():
    # Lightning's own imports, with the versions of this environment.
    warnings.simplefilter("ignore")
    import lightning.pytorch as pl
import torch

from evenstep.errors import InvalidSetting
from evenstep.lightning import EvenstepCallback, make_callbacks
from tests.distributed.workers import Workers
from tests.examples import ROOT, run_on_two_workers
from tests.pytorch.setup import distance
from tests.trainers.comparing import TABLE, TOLERANCE, TOTAL, above_the_optimum, assert_same
from tests.trainers.lightning_fits import (
    ITERATIONS,
    SAMPLES,
    Outcome,
    fit,
    fit_in_bfloat16,
    fit_on_streams,
    fit_refused,
    fit_twice,
    fit_with_batch_norm,
    fit_with_the_other_name,
)

pytestmark = pytest.mark.distributed
TIMEOUT = 60.0
STOCK, BALANCED = "examples/lightning_digits_stock.py", "examples/lightning_digits.py"
MANUAL = {"module": "pair", "strategy": "ddp_find_unused_parameters_true"}


def joined(outcomes: list[Outcome]) -> list[list[int]]:
    """Return the samples of all workers in each iteration."""
    batches = zip(*(outcome.visited for outcome in outcomes), strict=True)
    return [sorted(chain.from_iterable(iteration)) for iteration in batches]


def sizes(outcomes: list[Outcome]) -> list[tuple[int, ...]]:
    batches = zip(*(outcome.visited for outcome in outcomes), strict=True)
    return [tuple(map(len, iteration)) for iteration in batches]


def both(workers: Workers, **arguments: Any) -> tuple[list[Outcome], list[Outcome]]:
    """Fit with a stock Trainer and with a balanced one."""
    stock, balanced = (
        workers.run(fit, balanced=balanced, timeout=TIMEOUT, **arguments)
        for balanced in (False, True)
    )
    return stock, balanced


def compare(stock: list[Outcome], balanced: list[Outcome]) -> None:
    """Compare parameters, samples, steps and what was logged."""
    for outcome in balanced:
        assert_same(outcome.parameters, stock[0].parameters)
        assert outcome.ended == stock[0].ended
        compare_logged(outcome, stock[0])
    assert joined(balanced) == joined(stock)
    assert len(set(sizes(balanced))) > 3, "sizes must change"


def compare_logged(outcome: Outcome, expected: Outcome) -> None:
    assert [(step, set(values)) for step, values in outcome.logged] == [
        (step, set(values)) for step, values in expected.logged
    ]
    for (_, ours), (_, theirs) in zip(outcome.logged, expected.logged, strict=True):
        assert all(abs(ours[name] - theirs[name]) <= TOLERANCE for name in theirs)


def test_fifty_updates_are_those_of_the_stock_trainer(workers):
    stock, balanced = both(workers, max_epochs=5)
    compare(stock, balanced)
    assert balanced[0].ended == (50, 5, ITERATIONS)
    assert len([values for _, values in balanced[0].logged if "loss_step" in values]) == 50
    # The last iteration of an epoch is smaller, and an epoch has each sample once.
    assert [len(iteration) for iteration in joined(balanced)[:ITERATIONS]] == [16] * 9 + [6]
    assert set(chain.from_iterable(joined(balanced)[:ITERATIONS])) == set(range(SAMPLES))


@pytest.mark.parametrize(
    "arguments",
    [
        {"accumulate_grad_batches": 4},
        {"gradient_clip_val": 0.05},
        {"gradient_clip_val": 0.01, "gradient_clip_algorithm": "value"},
        {"limit_train_batches": 7},
        {"limit_train_batches": 0.5},
        {"overfit_batches": 6},
        {"max_steps": 13, "max_epochs": -1},
        {"val_check_interval": 0.25},
        {"val_check_interval": 3, "accumulate_grad_batches": 2},
        {"val_check_interval": 7, "check_val_every_n_epoch": None},
        {"check_val_every_n_epoch": 2},
        {"num_sanity_val_steps": 0},
        {"reload_dataloaders_every_n_epochs": 1, "max_epochs": 3},
        {"loader": {"sampler": "distributed"}, "use_distributed_sampler": False},
        {"loader": {"sampler": "distributed"}},
        {"loader": {"sampler": "odd"}},
        {"loader": {"drop_last": True}},
        {"loader": {"num_workers": 2}},
        {"loader": {"in_list": True}, "module": "listed"},
        {"module": "estimating"},
        {"precision": "64-true", "module": "single"},
        {"settings": {"total": TOTAL}},
        MANUAL,
        {**MANUAL, "module_options": {"every": 3}},
    ],
    ids=lambda arguments: "-".join(map(str, arguments)),
)
def test_settings_of_the_trainer_keep_their_meaning(workers, arguments):
    compare(*both(workers, **arguments))


def test_mixed_precision_differs_by_its_rounding_only(workers):
    stock, balanced = (
        workers.run(fit_in_bfloat16, balanced=balanced, timeout=TIMEOUT)
        for balanced in (False, True)
    )
    assert distance(balanced[0], stock[0]) < 0.02
    assert torch.equal(balanced[0], balanced[1])


@pytest.mark.parametrize(
    ("every", "arguments"),
    [
        (3, {}),
        (4, {"val_check_interval": 0.3, "module": "estimating"}),
        (5, {"max_steps": 18}),
        (1, {"accumulate_grad_batches": 3}),
        (3, {"loader": {"sampler": "odd"}}),
    ],
)
def test_training_resumes_in_mid_epoch_as_if_it_had_not_stopped(
    workers, tmp_path, every, arguments
):
    saving = {"dirpath": str(tmp_path), "every_n_train_steps": every, "save_top_k": -1}
    uninterrupted = workers.run(fit, balanced=False, timeout=TIMEOUT, **arguments)
    workers.run(fit, balanced=True, checkpoint=saving, timeout=TIMEOUT, **arguments)
    checkpoints = sorted(tmp_path.iterdir(), key=lambda file: file.stat().st_mtime)
    # One in mid-epoch, and the last one of the first epoch.
    chosen = {checkpoints[0], [file for file in checkpoints if file.name < "epoch=1"][-1]}
    for checkpoint in chosen:
        resumed = workers.run(
            fit, balanced=True, timeout=TIMEOUT, ckpt_path=str(checkpoint), **arguments
        )
        assert_same(resumed[0].parameters, uninterrupted[0].parameters)
        rest = joined(resumed)
        assert rest == joined(uninterrupted)[-len(rest) :]
        assert resumed[0].ended == uninterrupted[0].ended


def test_checkpoints_fit_a_stock_trainer_and_the_other_way_round(workers, tmp_path):
    saving = {"save_top_k": -1, "every_n_train_steps": 5}
    ended = []
    for balanced in (False, True):
        folder = tmp_path / str(balanced)
        workers.run(fit, balanced=balanced, checkpoint={"dirpath": str(folder), **saving})
        files = sorted(folder.iterdir(), key=lambda file: file.stat().st_mtime)
        # In mid-epoch, a stock Trainer begins with the first samples again, and so do we.
        for checkpoint in files[:2]:
            for resuming in {False, not balanced}:
                outcomes = workers.run(fit, balanced=resuming, ckpt_path=str(checkpoint))
                ended.append((checkpoint.name, outcomes[0]))
    for name in {name for name, _ in ended}:
        first, *others = (outcome for at, outcome in ended if at == name)
        assert len(others) == 2
        for outcome in others:
            assert_same(outcome.parameters, first.parameters)


def test_a_checkpoint_without_a_position_is_warned_of(workers, tmp_path):
    saving = {"dirpath": str(tmp_path), "every_n_train_steps": 5}
    workers.run(fit, balanced=False, max_steps=5, checkpoint=saving)
    [checkpoint] = tmp_path.iterdir()
    [outcome, _] = workers.run(fit, balanced=True, ckpt_path=str(checkpoint))
    [warned] = [text for text in outcome.warned if "without Evenstep" in text]
    assert "after 5 of 10 batches of an epoch" in warned


def test_a_trainer_fits_twice_and_leaves_nothing_behind(workers):
    stock, balanced = (
        workers.run(fit_twice, balanced=balanced, timeout=TIMEOUT) for balanced in (False, True)
    )
    assert_same(balanced[0].parameters, stock[0].parameters)
    assert balanced[0].left == stock[0].left
    assert balanced[0].can_be_pickled


def test_pytorch_lightning_is_balanced_as_well(workers):
    stock, balanced = (
        workers.run(fit_with_the_other_name, balanced=balanced, timeout=TIMEOUT)
        for balanced in (False, True)
    )
    for parameters, sizes in balanced:
        assert_same(parameters, stock[0][0])
        assert len(set(sizes)) > 3


def test_batch_norm_is_averaged_before_validations_and_checkpoints(workers, tmp_path):
    table = ((8, 8), (4, 12), (14, 2), (9, 7))
    first, second = workers.run(
        fit_with_batch_norm, folder=str(tmp_path), table=table, timeout=TIMEOUT
    )
    # One of them is that before the training.
    assert len(first.validated) == 5
    assert first.validated == second.validated
    assert first.at_the_end == second.at_the_end
    # Saved in mid-epoch, without a validation.
    saved = torch.load(tmp_path / "epoch=0-step=3.ckpt")["state_dict"]["net.1.running_mean"]
    ours, theirs = (torch.tensor(each.trained[2]).double() for each in (first, second))
    assert distance(ours, theirs) > 0.01
    assert distance(saved, (14 * ours + 2 * theirs) / 16) < 1e-6


def test_sizes_end_at_the_optimum_though_every_step_logs_a_mean_of_all_workers(workers):
    for accumulated in (1, 2):
        outcomes = workers.run(
            fit, balanced=True, module="unequal", timeout=TIMEOUT, max_epochs=3,
            accumulate_grad_batches=accumulated, settings={"policy": "equal_finish"},
        )  # fmt: skip
        full = [each for each in sizes(outcomes) if sum(each) == TOTAL]
        assert median(above_the_optimum(np.array(each)) for each in full[-9:]) <= 1.1


def test_streams_are_read_to_their_ends_and_resume(workers, tmp_path):
    for outcome in workers.run(fit_on_streams, folder=str(tmp_path), timeout=TIMEOUT):
        assert outcome.visited[: len(outcome.stream)] == outcome.stream
    checkpoint = str(tmp_path / "epoch=0-step=3.ckpt")
    for outcome in workers.run(fit_on_streams, ckpt_path=checkpoint, timeout=TIMEOUT):
        before = sum(sizes[outcome.worker] for sizes in (TABLE[0], TABLE[0], TABLE[1]))
        rest = outcome.stream[before:]
        assert outcome.visited[: len(rest)] == rest


@pytest.mark.parametrize(
    ("kind", "got"),
    [
        ("two", "a training must have one train loader, .*, got 2"),
        ("by name", "a training must have one train loader, .*, got 2"),
        ("combined", "a training must have one train loader, .*, got 2"),
        ("iterable", "must be a DataLoader, .*, got a Batches"),
        ("whole", "must have a DistributedSampler .*, got a SequentialSampler"),
        ("own batches", "must have a batch_size, .*, got batch_size=None or a batch_sampler"),
        ("other total", "must be the balancer's total, 20, .*, got 8"),
        ("synchronised", "sync_batchnorm must be False in mode 'balanced', got True"),
        ("sum", "a loss must be a mean .*, got a sum"),
        ("gathering", r"must have the same shape .*, got \(4, 6\), \(12, 6\)"),
    ],
)
def test_refuses_with_a_reason(workers, kind, got):
    for failure in workers.failures(fit_refused, kind=kind, timeout=TIMEOUT):
        assert failure.kind == "InvalidSetting"
        assert re.search(got, failure.message), failure.message


class Made(pl.Trainer):  # type: ignore[misc]
    """A Trainer of two workers with a strategy that only GPUs could run."""

    strategy: Any = None
    world_size = 2

    def __init__(self, strategy: str) -> None:
        self.strategy = object.__new__(getattr(pl.strategies, strategy))


@pytest.mark.parametrize("name", ["FSDPStrategy", "DeepSpeedStrategy", "ModelParallelStrategy"])
def test_refuses_strategies_that_divide_the_model(name):
    with pytest.raises(InvalidSetting, match=f"the strategy must be DDP, .*, got {name}"):
        EvenstepCallback().setup(Made(name), None, "fit")


def test_refuses_pieces_of_batches():
    with pytest.raises(InvalidSetting, match="micro_batches must be left out"):
        EvenstepCallback(micro_batches=True)


def test_warns_of_a_constant_batch_size_in_a_log(workers):
    [outcome, _] = workers.run(fit, balanced=True, module="constant", timeout=TIMEOUT)
    [warned] = [text for text in outcome.warned if "self.log" in text]
    assert "self.log('loss', ..., batch_size=8) is called for a batch of 4 samples" in warned


@pytest.mark.parametrize("strategy", ["auto", "ddp"])
def test_leaves_a_single_process_as_it_is(workers, strategy):
    [[stock], [balanced]] = (
        workers.run(fit, balanced=balanced, count=1, devices=1, strategy=strategy, max_epochs=1)
        for balanced in (False, True)
    )
    assert torch.equal(balanced.parameters, stock.parameters)
    assert balanced.logged == stock.logged
    [warned] = [text for text in balanced.warned if "Evenstep" in text]
    assert warned.startswith("Evenstep balances DDP on several workers and leaves this training as")


def test_environment_asks_for_the_callback(monkeypatch):
    monkeypatch.delenv("EVENSTEP", raising=False)
    assert make_callbacks() == []
    monkeypatch.setenv("EVENSTEP", "0")
    assert make_callbacks() == []
    monkeypatch.setenv("EVENSTEP", "1")
    [callback] = make_callbacks()
    assert isinstance(callback, EvenstepCallback) and isinstance(callback, pl.Callback)
    monkeypatch.setenv("EVENSTEP", "yes")
    with pytest.raises(InvalidSetting, match="EVENSTEP must be 0 or 1 in the environment, got 'y"):
        make_callbacks()


def test_lightning_finds_the_factory(monkeypatch):
    group = "lightning.pytorch.callbacks_factory"
    entry = EntryPoint("evenstep", "evenstep.lightning:make_callbacks", group)
    found_by = "lightning.fabric.utilities.registry.entry_points"
    monkeypatch.setattr(found_by, lambda group: [entry] if group == entry.group else [])
    for value, found in (("0", []), ("1", [EvenstepCallback])):
        monkeypatch.setenv("EVENSTEP", value)
        trainer = pl.Trainer(
            accelerator="cpu", logger=False, enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False,
        )  # fmt: skip
        assert [type(callback) for callback in trainer.callbacks] == found


def test_two_lines_make_the_difference():
    stock, balanced = ((ROOT / name).read_text().splitlines() for name in (STOCK, BALANCED))
    _, _, *changes = difflib.unified_diff(stock, balanced, n=0)
    assert [line for line in changes if not line.startswith("@")] == [
        "+from evenstep.lightning import EvenstepCallback",
        "+    callbacks=[EvenstepCallback()],",
    ]


@pytest.mark.example
@pytest.mark.timeout(300)
def test_example_learns_as_its_stock_form_does():
    line = r"loss ([\d.]+), accuracy ([\d.]+)% after 5 epochs"
    done = [run_on_two_workers(STOCK, tries=5, result=line), run_on_two_workers(BALANCED)]
    (stock_loss, _), (loss, accuracy) = (re.findall(line, one.stdout)[0] for one in done)
    # In single precision, so that the order in which gradients are added shows in the last digits.
    assert float(loss) == pytest.approx(float(stock_loss), abs=2e-3)
    assert float(accuracy) > 90
