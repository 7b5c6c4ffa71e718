"""Checks that losses are means over samples, where the user does not say what they are.

Gradients of means are weighed by x_i / X. With a sum that would be wrong without a word, so the
losses of the first backward passes are looked at, before they run.
"""

from __future__ import annotations

import functools
import threading
import warnings
import weakref
from collections.abc import Callable
from dataclasses import replace
from types import TracebackType
from typing import Any

import torch

from evenstep.errors import InvalidSetting
from evenstep.pytorch.loss_kind import Verdict, verdict_of

LOSSES = ("mean", "sum", "global")
"""Kinds of losses: a mean over samples, their sum, or a sum over a count of all workers."""

_MOST_SEEN = 64
"""Losses that are all looked at: a script may have several kinds, each for a backward pass."""
_FEWEST_ALIKE = 4
"""Losses after which the number that all of them are divided by is a constant."""
_MOST_ASKED = 8
"""Batch sizes at which the kind of a loss is asked for, if it is not certain."""


def check_loss(loss: object) -> None:
    """Raise InvalidSetting unless this is a kind of loss, or None for a mean to be checked."""
    if loss is not None and loss not in LOSSES:
        raise InvalidSetting(f"loss must be one of {', '.join(LOSSES)}, got {loss!r}")


class LossCheck:
    """Raises InvalidSetting for a sum, and warns once of losses that it cannot tell to be means.

    It looks at the first losses, and then, if an answer was not certain, once at every new size.
    """

    def __init__(self) -> None:
        self._seen = 0
        self._asked: set[int] = set()
        self._divisors: list[tuple[float, int]] = []
        """The numbers that losses were divided by, each with the samples of its batch."""
        self._is_unsure = self._has_warned = False
        self._judged: tuple[int, Verdict] | None = None
        self.is_open = True
        """Whether losses are still looked at."""

    def see(self, loss: torch.Tensor, samples: int) -> None:
        """Look at the loss of a batch before its backward pass."""
        self.judge(loss, samples)
        self.settle(samples)

    def judge(self, loss: torch.Tensor, samples: int) -> None:
        """Look at a loss that may be one of this batch."""
        is_known = self._seen >= _MOST_SEEN and samples in self._asked
        if self.is_open and not is_known:
            self._judged = samples, verdict_of(loss, samples)

    def settle(self, samples: int | None) -> None:
        """Act on the loss that was judged, as it is one of a batch with this number of samples."""
        judged, self._judged = self._judged, None
        if not self.is_open or judged is None or judged[0] != samples:
            return
        verdict = self._compared(*judged)
        self._seen += 1
        self._asked.add(judged[0])
        self._is_unsure = self._is_unsure or not verdict.is_certain
        if self._seen >= _MOST_SEEN and (not self._is_unsure or len(self._asked) >= _MOST_ASKED):
            self.close()
        if verdict.kind == "sum" and verdict.is_certain:
            raise InvalidSetting(
                "a loss must be a mean over the samples of this worker, or the balancer must know "
                f'what it is: Balancer(..., loss="sum"), got a sum, as {verdict.reason}'
            )
        is_final = verdict.is_certain or not self.is_open
        if verdict.kind in ("other", None) and is_final and not self._has_warned:
            self._has_warned = True
            _warn(verdict)

    def _compared(self, samples: int, verdict: Verdict) -> Verdict:
        """Compare what a loss is divided by with the losses before: a constant leaves a sum."""
        if verdict.count is None:
            return verdict
        self._divisors.append((verdict.count, samples))
        if verdict.kind != "sum":
            return verdict
        divisors, sizes = map(set, zip(*self._divisors, strict=True))
        if len(divisors) > 1:
            return replace(verdict, kind="other", is_certain=True)
        is_constant = len(sizes) > 1 and len(self._divisors) >= _FEWEST_ALIKE
        return replace(verdict, is_certain=is_constant)

    def forget(self) -> None:
        """Forget a loss whose backward pass did not reach the model."""
        self._judged = None

    def close(self) -> None:
        """Look at no further losses."""
        self.is_open = False


def _warn(verdict: Verdict) -> None:
    if verdict.kind == "other":
        text = (
            f"a loss may be no mean over the samples of this worker, as {verdict.reason}: if it is "
            "a mean over a count, such as tokens, call balancer.weigh(loss, count)"
        )
    else:
        text = (
            "cannot tell whether a loss is a mean over the samples of this worker, as "
            f"{verdict.reason}; it is taken for one"
        )
    warnings.warn(
        f'{text}; Balancer(..., loss="mean") or loss="sum" says what it is, without this warning',
        stacklevel=2,
    )


def watch_losses(check: LossCheck, expected: Callable[[], int | None]) -> None:
    """Judge the loss of each backward pass, until the check is closed.

    `expected` returns the samples of the batch whose backward pass comes next, or None. A loss may
    be that of another model, so the verdict counts once the pass reaches ours.
    """
    found = weakref.ref(check)

    def see(loss: torch.Tensor) -> None:
        check = found()
        if check is None or not check.is_open:
            watch.close()
            return
        samples = expected()
        if samples is not None:
            check.judge(loss, samples)

    def ended() -> None:
        check = found()
        if check is not None:
            check.forget()

    watch = LossWatch(see, ended)
    weakref.finalize(check, watch.close)


class LossWatch:
    """Calls `see` with the loss of every backward pass, before it runs, until it is closed.

    `loss.backward()` and `torch.autograd.backward` are seen, also as GradScaler and trainers call
    them, in all threads; backward passes within another one are not. torch has no hook for it, so
    `torch.autograd.backward` is replaced while watches are open. An error of `see` reaches the
    caller of backward.
    """

    def __init__(
        self, see: Callable[[torch.Tensor], object], ended: Callable[[], object] = bool
    ) -> None:
        self.see = see
        self.ended = ended
        """Called after the pass."""
        with _LOCK:
            self._watched = _watched_backward()
            self._watched.watches = (*self._watched.watches, self)

    def close(self) -> None:
        """Stop watching; the last watch to close restores the original function."""
        with _LOCK:
            self._watched.watches = tuple(w for w in self._watched.watches if w is not self)
            if not self._watched.watches and torch.autograd.backward is self._watched.function:
                torch.autograd.backward = self._watched.original

    def __enter__(self) -> LossWatch:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class _WatchedBackward:
    """Stands for torch.autograd.backward while watches are open."""

    def __init__(self, original: Callable[..., None]) -> None:
        self.original = original
        self.watches: tuple[LossWatch, ...] = ()
        self._thread = threading.local()

        @functools.wraps(original)
        def backward(tensors: Any, *args: Any, **options: Any) -> None:
            self._run(tensors, args, options)

        # A compiled loop would compile it, and so what looks at the loss.
        self.function: Any = torch.compiler.disable(backward)
        self.function.watched = self

    def _run(self, tensors: Any, args: tuple[Any, ...], options: dict[str, Any]) -> None:
        # Tensor subclasses call backward again from within it, and so does checkpointing from
        # within a pass, perhaps in a thread of the device.
        is_within = getattr(self._thread, "runs", False) or torch._C._current_graph_task_id() != -1
        if is_within or not self.watches:
            self.original(tensors, *args, **options)
            return
        if not isinstance(tensors, torch.Tensor | torch.autograd.graph.GradientEdge):
            tensors = tuple(tensors)  # It may be a generator.
        for loss in tensors if type(tensors) is tuple else (tensors,):
            for watch in self.watches if isinstance(loss, torch.Tensor) else ():
                watch.see(loss)
        self._thread.runs = True
        try:
            self.original(tensors, *args, **options)
        finally:
            self._thread.runs = False
            for watch in self.watches:
                watch.ended()


_LOCK = threading.Lock()


def _watched_backward() -> _WatchedBackward:
    """Return the function that stands for backward, and put it in its place if it is not there."""
    watched = getattr(torch.autograd.backward, "watched", None)
    if isinstance(watched, _WatchedBackward):
        return watched
    watched = _WatchedBackward(torch.autograd.backward)
    torch.autograd.backward = watched.function
    return watched
