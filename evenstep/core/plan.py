"""Plans: the batch sizes of all workers, numbered, with the policy's reason and advice.

The gradient weight turns a mean over workers into the mean over samples (section 3.4).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

from evenstep.core.arrays import Floats, Ints, frozen

_SHOWN = 32
"""Rows of a table in a notebook."""


@dataclass(frozen=True)
class Advice:
    """An action that a person, or code that a person has permitted, has to take."""

    worker: int
    """Position of the worker concerned."""
    predicted_time: float | None
    """Predicted iteration time, in seconds, if it is followed; None where unknown."""
    kind: str = "remove"
    """What to do with the worker: remove it from the job."""


@dataclass(frozen=True, eq=False)
class Decision:
    """The answer of a policy at a boundary."""

    sizes: Ints
    """The batch sizes to use."""
    reason: str = ""
    """Why the sizes are not the current ones; empty where they are."""
    predicted_times: Floats | None = None
    """t that the policy expects of each worker with these sizes, in seconds."""
    advice: tuple[Advice, ...] = ()
    proposed: Ints | None = None
    """The sizes that would have been used, where a wrapper holds them back."""
    phase: str = ""
    """The policy's own state in a word (`fast-approach`, `fine-tune`), where it has one."""


@dataclass(frozen=True, eq=False)
class Plan:
    """The batch sizes of all workers, with the iteration from which they hold."""

    number: int
    """Plans of a job are numbered from 0; a new number means new sizes or new members."""
    iteration: int
    """The first iteration that uses these sizes."""
    sizes: Ints
    """x of each worker; they add up to the total."""
    reason: str = ""
    predicted_times: Floats | None = field(default=None, repr=False)
    advice: tuple[Advice, ...] = ()
    proposed: Ints | None = None
    phase: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "sizes", frozen(self.sizes))

    def __repr__(self) -> str:
        reason = f", {self.reason}" if self.reason else ""
        since = f"{self.number} from iteration {self.iteration}"
        return f"Plan({since}: {joined_sizes(self.sizes)} of {self.total}{reason})"

    def _repr_html_(self) -> str:
        """Return a table for notebooks."""
        sizes = self.sizes.tolist()
        rows = [(i, size, f"{size / max(self.total, 1):.1%}") for i, size in enumerate(sizes)]
        return html_table(repr(self), ("worker", "batch size", "share"), rows)

    @property
    def total(self) -> int:
        """X: the samples of all workers in one iteration."""
        return int(self.sizes.sum())


def joined_sizes(sizes: Ints) -> str:
    """Return batch sizes in one word; the middle ones of many are left out.

    >>> import numpy as np
    >>> joined_sizes(np.array([89, 21, 12, 6])), joined_sizes(np.arange(100))
    ('89/21/12/6', '0/1/2/3/4/5/.../94/95/96/97/98/99')
    """
    texts = [str(size) for size in sizes.tolist()]
    return "/".join(texts if len(texts) <= 16 else [*texts[:6], "...", *texts[-6:]])


def html_table(title: str, head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a table as notebooks show it, all texts escaped; of many rows, the first 32.

    >>> html_table("<1>", ["x"], [[2]])
    '<p>&lt;1&gt;</p><table><tr><th>x</th></tr><tr><td>2</td></tr></table>'
    """

    def line(cells: Sequence[object], tag: str) -> str:
        inner = "".join(f"<{tag}>{escape(str(cell))}</{tag}>" for cell in cells)
        return f"<tr>{inner}</tr>"

    body = line(head, "th") + "".join(line(row, "td") for row in rows[:_SHOWN])
    rest = f"<p>and {len(rows) - _SHOWN} more</p>" if len(rows) > _SHOWN else ""
    return f"<p>{'<br>'.join(map(escape, title.splitlines()))}</p><table>{body}</table>{rest}"


def gradient_weight(batch_size: int, total: int, num_workers: int = 1) -> float:
    """Return the factor of a worker's mean gradient; 0 where no worker has samples.

    Before gradients are summed over the workers it is ``x_i / X``; before a mean over `num_workers`
    workers it is ``n x_i / X``, as the paper has it.

    >>> gradient_weight(24, total=64), gradient_weight(24, total=64, num_workers=2)
    (0.375, 0.75)
    """
    return num_workers * batch_size / max(total, 1)
