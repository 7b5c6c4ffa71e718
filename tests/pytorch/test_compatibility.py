"""What scripts do besides training: each goes with batch sizes that change, or says why not."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader

from evenstep import runlog
from evenstep.pytorch import Balancer
from evenstep.pytorch.compatibility import warn_of_new_sizes
from tests.distributed.workers import ROOT
from tests.pytorch.loop import EPOCHS, SIZES, Loop
from tests.pytorch.setup import FEATURES, data, distance, net

pytestmark = [pytest.mark.distributed, pytest.mark.compatibility]


class Branches(nn.Module):
    """A net of which every second pass leaves a part unused."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = net(torch.float64), nn.Linear(FEATURES, 3, dtype=torch.float64)
        nn.init.constant_(self.second.weight, 0.1)
        nn.init.constant_(self.second.bias, 0.1)
        self._passes = 0

    def forward(self, samples: torch.Tensor) -> torch.Tensor:
        self._passes += 1
        outputs: torch.Tensor = self.first(samples)
        return outputs + self.second(samples) if self._passes % 2 else outputs


class Checkpointed(nn.Module):
    """A net that computes its activations a second time in the backward pass."""

    def __init__(self, use_reentrant: bool) -> None:
        super().__init__()
        self.inner = net(torch.float64)
        self._use_reentrant = use_reentrant

    def forward(self, samples: torch.Tensor) -> torch.Tensor:
        samples = samples.requires_grad_()
        outputs: torch.Tensor = checkpoint(self.inner, samples, use_reentrant=self._use_reentrant)
        return outputs


def simple(table: Any, inner: nn.Module | None = None, **ddp: Any) -> Any:
    loop = Loop(table, inner, **ddp)
    for batch in loop.batches():
        loop.train(*batch)
    return loop.result()


def unused_parameters(table: Any) -> Any:
    return simple(table, Branches(), find_unused_parameters=True)


def bucket_view(table: Any) -> Any:
    loop = Loop(table, gradient_as_bucket_view=True)
    for batch in loop.batches():
        loop.backward(*batch)
        loop.optimizer.step()
        loop.optimizer.zero_grad(set_to_none=False)
    return loop.result()


def static_graph(table: Any) -> Any:
    return simple(table, static_graph=True)


def checkpointing(table: Any) -> Any:
    return simple(table, Checkpointed(use_reentrant=False))


def reentrant_checkpointing(table: Any) -> Any:
    return simple(table, Checkpointed(use_reentrant=True), static_graph=True)


def clipping(table: Any) -> Any:
    loop = Loop(table)
    for batch in loop.batches():
        loop.backward(*batch)
        nn.utils.clip_grad_norm_(loop.model.parameters(), 0.1)
        loop.step()
    return loop.result()


def scheduler(table: Any) -> Any:
    loop = Loop(table)
    loader = loop.loader()
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        loop.optimizer, max_lr=0.5, epochs=EPOCHS, steps_per_epoch=len(loader)
    )
    for batch in loop.batches(loader):
        loop.train(*batch)
        schedule.step()
    return loop.result()


def several_optimizers(table: Any) -> Any:
    loop = Loop(table)
    first, second = loop.model.module[0], loop.model.module[2]
    optimizers = [
        torch.optim.SGD(first.parameters(), lr=0.1),
        torch.optim.Adam(second.parameters(), lr=0.01),
    ]
    for batch in loop.batches():
        loop.backward(*batch)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    return loop.result()


def evaluating_on_all(table: Any) -> Any:
    return evaluating(table, who=(0, 1))


def evaluating_on_one(table: Any) -> Any:
    return evaluating(table, who=(1,))


def evaluating(table: Any, who: tuple[int, ...]) -> Any:
    """Evaluate in mid-epoch and between batch and backward pass, with a loader of either kind."""
    loop = Loop(table)
    stock = DataLoader(data(20, torch.float64), batch_size=5)
    validation = loop.balancer.loader(data(20, torch.float64), shuffle=False)
    for i, (samples, labels) in enumerate(loop.batches()):
        if i % 3 == 0 and loop.balancer.worker in who:
            loop.model.eval()
            with torch.no_grad():
                for others, _ in itertools.chain(stock, validation):
                    loop.model(others)
            loop.model.train()
        loop.train(samples, labels)
    return loop.result()


def early_break(table: Any) -> Any:
    loop = Loop(table)
    loader = loop.loader(num_workers=1)
    for _ in range(3):
        for i, (samples, labels) in enumerate(loader):
            loop.sizes.append(len(samples))
            loop.train(samples, labels)
            if i == 4:
                break
    loop.balancer.close()
    return loop.result()


def exceptions(table: Any) -> Any:
    """Let the body fail before and after its passes; the next iteration continues."""
    loop = Loop(table)
    for i, (samples, labels) in enumerate(loop.batches()):
        with suppress(KeyError):
            if i % 6 == 1:
                raise KeyError("before the forward pass")
            loss = cross_entropy(loop.model(samples), labels)
            if i % 6 == 3:
                raise KeyError("before the backward pass")
            loss.backward()
            if i % 6 == 5:
                raise KeyError("before the step")
            loop.optimizer.step()
        loop.optimizer.zero_grad()
    return loop.result()


def spawned_loading(table: Any) -> Any:
    loop = Loop(table)
    settings = {"num_workers": 1, "multiprocessing_context": "spawn", "persistent_workers": True}
    for batch in loop.batches(loop.loader(**settings)):
        loop.train(*batch)
    return loop.result()


def persistent_loading(table: Any) -> Any:
    """Keep the loading processes over epochs, one of which is left early."""
    loop = Loop(table)
    loader = loop.loader(num_workers=2, persistent_workers=True)
    for samples, labels in itertools.islice(loader, 3):
        loop.train(samples, labels)
    for batch in loop.batches(loader):
        loop.train(*batch)
    return loop.result()


ALIKE: list[Callable[..., Any]] = [
    unused_parameters, bucket_view, static_graph, checkpointing, reentrant_checkpointing, clipping,
    scheduler, several_optimizers, evaluating_on_all, evaluating_on_one, early_break, exceptions,
    spawned_loading, persistent_loading,
]  # fmt: skip


@pytest.mark.parametrize("script", ALIKE, ids=lambda script: script.__name__)
def test_parameters_are_those_of_plain_bsp(workers, script):
    plain = workers.run(script, table=None)
    for worker, (result, sizes) in enumerate(workers.run(script, table=SIZES)):
        assert distance(result, plain[0][0]) <= 1e-10
        assert len(set(sizes)) >= 4
        assert sizes != plain[worker][1]
    assert distance(plain[0][0], plain[1][0]) <= 1e-10


def scaled(table: Any) -> Any:
    """Train in bfloat16 with a gradient scaler that has to find its scale first."""
    loop = Loop(table, net())
    loop.optimizer.param_groups[0]["lr"] = 0.02
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127, growth_interval=100)
    for samples, labels in loop.batches():
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = 4 * cross_entropy(loop.model(samples.float()), labels)
        scaler.scale(loss).backward()
        scaler.step(loop.optimizer)
        scaler.update()
        loop.optimizer.zero_grad()
    return *loop.result(), scaler.get_scale()


def test_parameters_in_bfloat16_are_those_of_plain_bsp_to_its_rounding(workers):
    plain, _, scale = workers.run(scaled, table=None)[0]
    assert scale < 2.0**127
    for result, sizes, found in workers.run(scaled, table=SIZES):
        assert len(set(sizes)) >= 4
        assert found == scale
        assert 0 < distance(result, plain) <= 3e-2


def with_sync_batch_norm(mode):
    model = DistributedDataParallel(net(batch_norm=True))
    # Afterwards, as DDP does not wrap it without a GPU.
    model.module[1] = nn.SyncBatchNorm(16)
    balancer = Balancer(model, 16, mode=mode, summary=False)
    balancer.close()


@pytest.mark.parametrize("mode", ["balanced", "observe"])
def test_sync_batch_norm_is_refused_where_times_or_sizes_matter(workers, mode):
    for failure in workers.failures(with_sync_batch_norm, mode=mode):
        assert failure.kind == "InvalidSetting"
        assert f"must not have SyncBatchNorm in mode '{mode}'" in failure.message
        assert "GroupNorm, or mode='off'" in failure.message


def test_sync_batch_norm_is_as_ever_in_plain_bsp(workers):
    workers.run(with_sync_batch_norm, mode="off")


def new_sizes(granularity, device="cuda", compiled=False):
    """Return the warnings about new batch sizes."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model: Any = torch.compile(net(), mode="reduce-overhead") if compiled else net()
        warn_of_new_sizes(model, granularity, torch.device(device))
    # What torch says when it loads its compiler is not ours.
    return [str(warning.message) for warning in caught if warning.category is UserWarning]


def test_benchmarking_of_cudnn_is_warned_of(monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    [message] = new_sizes(granularity=1)
    assert "cudnn.benchmark is on" in message
    assert "granularity=8" in message
    assert new_sizes(granularity=8) == []


def test_cuda_graphs_are_warned_of():
    [message] = new_sizes(granularity=1, compiled=True)
    assert "compiled to CUDA graphs" in message
    assert new_sizes(granularity=8, compiled=True) == []


SCRIPT = """
import sys
from datetime import timedelta
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from evenstep.pytorch import Balancer
from tests.pytorch.setup import data, net

dist.init_process_group("gloo", timeout=timedelta(minutes=10))
model = DistributedDataParallel(net())
balancer = Balancer(model, 16, log=sys.argv[1])
# One long epoch: Python loses an interrupt that comes while it forks a loading process.
loader = balancer.loader(data(16 * 100_000), num_workers=1)
for i, (samples, labels) in enumerate(loader):
    model(samples).mean().backward()
    if dist.get_rank() == 0 and i == 20:
        print("training", flush=True)
"""


def await_end_of_session(leader: int) -> None:
    """Wait until a session has no process any more, or fail.

    A loading process looks every five seconds whether its worker is still there.
    """
    until = time.monotonic() + 15
    left = in_session(leader)
    while left and time.monotonic() < until:
        time.sleep(0.1)
        left = in_session(leader)
    assert left == []


def in_session(leader: int) -> list[int]:
    """Return the processes of a session."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(ProcessLookupError):
            if os.getsid(int(folder.name)) == leader:
                found.append(int(folder.name))
    return found


@pytest.mark.timeout(150)
def test_interrupt_ends_everything_and_closes_the_run_log(tmp_path):
    script, log = tmp_path / "script.py", tmp_path / "run.jsonl"
    script.write_text(SCRIPT)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    with subprocess.Popen(
        [*torchrun, "--local-addr", "127.0.0.1", "--nproc-per-node", "2", str(script), str(log)],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
    ) as job:  # fmt: skip
        try:
            assert job.stdout is not None
            assert job.stdout.readline() == "training\n"
            # As a terminal does at Ctrl-C.
            os.killpg(job.pid, signal.SIGINT)
            # The timeout of the process group is ten minutes.
            _, errors = job.communicate(timeout=60)
            await_end_of_session(job.pid)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(job.pid, signal.SIGKILL)
    assert "KeyboardInterrupt" in errors
    # What torchrun does to those that do not come to an end by themselves.
    assert "forcefully exiting" not in errors
    written = runlog.read(log)
    assert written.complete, errors
    assert written.ended, errors
    assert len(written.iterations) >= 20
