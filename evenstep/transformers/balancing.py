"""The balancer of a Trainer: bound to its model, saved, restored, and asked for weights."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
import transformers
from numpy.typing import ArrayLike
from transformers import TrainerCallback
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, get_last_checkpoint

from evenstep.core import SavedState, sealed
from evenstep.errors import InvalidSetting, StateFileError
from evenstep.pytorch import Balancer
from evenstep.pytorch.compatibility import has_batch_norm
from evenstep.transformers.losses import Kind, MeanCheck, differentiable, kind_of
from evenstep.transformers.train_loader import TrainLoader

if TYPE_CHECKING:
    from evenstep.training.settings import Options

STATE_FILE = "evenstep.pt"
"""In the folder of a checkpoint: what the balancer has learned, and where the loader is."""


def read_state(file: Path) -> Any:
    """Return the state in a file; or the error, as all workers must raise it."""
    try:
        state = torch.load(file, weights_only=True)
        SavedState("a balanced Trainer", state, "balancer", "loader")
        SavedState("a balancer", state["balancer"], "iteration", "total")
    except Exception as error:
        # A damaged file makes torch raise almost any error.
        return StateFileError(f"{file}: {error}")
    return state


class Balancing(TrainerCallback):  # type: ignore[misc]
    """Does the work of a balanced Trainer; a callback, as the Trainer says when it saves."""

    def __init__(
        self,
        trainer: Any,
        loss: Kind | None,
        counts: ArrayLike | None,
        options: Options,
    ) -> None:
        self._trainer = trainer
        self._loss = loss
        self._counts = counts
        self._options = options
        self.balancer: Balancer | None = None
        """The balancer of the wrapped model, from the first batch on."""
        self.loader: TrainLoader | None = None
        self._model: Any = None
        self._saved: Mapping[str, Any] = {}
        self._kinds: dict[bool, Kind] = {}
        """The kinds of losses with and without a number of items."""
        self._check = MeanCheck(trainer.label_names, trainer.model)
        self._gather = trainer.accelerator.gather
        trainer.accelerator.gather = self._gather_unmeasured

    # The loader, and checkpoints

    def resume(self, checkpoint: Any) -> None:
        """Read the state of a checkpoint: a folder, or True for the last one.

        A checkpoint of a stock Trainer has none, and is enough to continue with even sizes. All
        workers must call it, and use what worker 0 reads: others may not see its files.
        """
        args = self._trainer.args
        folder = get_last_checkpoint(args.output_dir) if checkpoint is True else checkpoint
        file = Path(folder or "", STATE_FILE)
        read = [read_state(file) if folder and file.exists() else {}]
        dist.broadcast_object_list(read, device=args.device)
        if isinstance(read[0], StateFileError):
            raise read[0]
        self._saved = read[0]

    def make_loader(self, stock: Any) -> TrainLoader:
        """Return the loader of a training, in place of the stock one."""
        self._kinds.clear()
        self._check = MeanCheck(self._trainer.label_names, self._trainer.model)
        self.loader = TrainLoader(stock, self._bind, self._counts, self._saved.get("loader"))
        return self.loader

    def _bind(self, total: int) -> Balancer:
        """Return the balancer of the wrapped model; all workers must call it."""
        model = self._trainer.model_wrapped
        if self.balancer is None or model is not self._model:
            if self.balancer is not None:
                self.balancer.close()
            self.balancer = Balancer(model, total, loss="global", **self._options)
            self._model = model
        state = self._saved.get("balancer")
        if state is not None and SavedState("a balancer", state)["total"] == total:
            self.balancer.load_state_dict(state)
        self.balancer.total = total
        return self.balancer

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Add the state to a checkpoint that training can resume from."""
        folder = Path(args.output_dir, f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}")
        is_complete = folder.is_dir() and not args.save_only_model
        if self.balancer is None or self.loader is None or not is_complete:
            return
        if state.is_world_process_zero:
            saved = {"balancer": self.balancer.state_dict(), "loader": self.loader.state_dict()}
            torch.save(sealed(saved), folder / STATE_FILE)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Average BatchNorm's statistics before an evaluation or a checkpoint.

        After the last update, average the losses that were not logged, too: the Trainer takes those
        of worker 0 for the train loss, which may be of few samples here.
        """
        if control.should_evaluate or control.should_save:
            self._average_buffers()
        if control.should_training_stop and self.balancer is not None:
            self._average_losses()

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._average_buffers()

    def _average_losses(self) -> None:
        losses = getattr(self._trainer, "_tr_loss", None)
        if losses is None:
            raise InvalidSetting(
                "a Trainer must keep the losses that were not logged in _tr_loss, got "
                f"transformers {transformers.__version__} without it"
            )
        losses.copy_(self._gather(losses.reshape(1)).mean())

    def _average_buffers(self) -> None:
        if self.balancer is not None and has_batch_norm(self._model):
            self.balancer.average_buffers()

    # Passes and losses

    def expect(self, inputs: Any) -> None:
        """Say which batch comes next, as the Trainer fetches all of an accumulation first."""
        if self._trainer.args.gradient_accumulation_steps > 1:
            self._bound.on(inputs)

    def compute_weighed(
        self, compute: Any, model: Any, inputs: Any, return_outputs: bool, num_items: Any
    ) -> Any:
        """Return what `compute` returns, with a loss whose plain mean over workers is right."""
        has_items, kept = num_items is not None, {**inputs}
        kind = self._loss or self._kinds.get(has_items)
        is_new = kind is None
        num_items = differentiable(num_items) if is_new else num_items
        computed = compute(model, inputs, return_outputs, num_items)
        loss = computed[0] if return_outputs else computed
        if is_new:
            kind = kind_of(loss, num_items, partial(self._compute_again, compute, kept))
            self._check_divisor(kind, has_items)
        if kind is not None and is_new:
            self._kinds[has_items] = kind
        if kind == "mean":
            loss = self._weighed_mean(loss, kept)
        return (loss, *computed[1:]) if return_outputs else loss

    def _weighed_mean(self, loss: torch.Tensor, inputs: Mapping[str, Any]) -> torch.Tensor:
        """Return a loss that is a mean over the samples of this worker times n x_i / X."""
        balancer = self._bound
        weight = balancer.gradient_weight
        if self._loss is None:
            self._check.see_labels(inputs, self._shared)
            self._check.see_loss(loss, round(weight * balancer.total / balancer.num_workers))
        return loss * weight

    def _check_divisor(self, kind: Kind | None, has_items: bool) -> None:
        args = self._trainer.args
        if kind == "global" and has_items and not args.average_tokens_across_devices:
            raise InvalidSetting(
                "average_tokens_across_devices must be True where losses are divided by "
                "num_items_in_batch, as the stock result depends on which worker has which "
                "samples otherwise, got False"
            )

    def _compute_again(
        self, compute: Any, inputs: Mapping[str, Any], num_items: torch.Tensor
    ) -> torch.Tensor:
        """Return the loss of a batch for another number of items, without any trace."""
        model = self._trainer.model
        was_training = model.training
        with self._bound.away(), torch.no_grad():
            model.eval()
            try:
                loss: torch.Tensor = compute(model, {**inputs}, False, num_items)
            finally:
                model.train(was_training)
        return loss

    def _shared(self, value: Any) -> list[Any]:
        """Return the values of all workers."""
        values: list[Any] = [None] * self._bound.num_workers
        with self._bound.away():
            dist.all_gather_object(values, value)
        return values

    def _gather_unmeasured(self, *tensors: Any, **named: Any) -> Any:
        """Gather as the accelerator does; the wait for other workers does not count as work."""
        if self.balancer is None:
            return self._gather(*tensors, **named)
        with self.balancer.away():
            return self._gather(*tensors, **named)

    @property
    def _bound(self) -> Balancer:
        assert self.balancer is not None, "the loader binds the balancer before the first pass"
        return self.balancer
