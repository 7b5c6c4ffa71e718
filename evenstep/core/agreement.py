"""Agreements: which plan all workers use in an iteration, where no gradient exchange decides it.

Every member says the number of the newest plan that it holds; the smallest of them is the plan that
everybody holds. An agreement has one outcome, which never changes: a number, or that it failed. It
fails for all as soon as it fails for one, and a failed one means: go on with the last common plan.
A member that has gone on to a later iteration without it will not say anything more: it has failed.
So has one in which a member has spoken that is gone, or comes anew: it will not hear the outcome.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

KEPT_OUTCOMES = 8
"""Outcomes that can still be asked for; whoever asks for an older one is told that it failed."""


@dataclass(frozen=True)
class Outcome:
    """How an agreement ended."""

    number: int | None
    """Number of the plan that all members hold; None where they could not agree."""


FAILED = Outcome(None)


class Agreements:
    """The agreements of a job, one per iteration.

    >>> agreements = Agreements()
    >>> agreements.say("a", 7, number=3)
    >>> agreements.settle(["a", "b"])
    >>> agreements.outcome(7)
    >>> agreements.say("b", 7, number=2)
    >>> agreements.settle(["a", "b"])
    >>> agreements.outcome(7)
    Outcome(number=2)
    """

    def __init__(self) -> None:
        self._said: dict[int, dict[str, int]] = {}
        self._outcomes: dict[int, Outcome] = {}
        self._at: dict[str, int] = {}
        self._forgotten = -1
        self.num_ended = 0

    def say(self, worker: str, iteration: int, number: int) -> None:
        """Take the number of the newest plan that a worker holds before an iteration."""
        self.go_on(worker, iteration)
        if self.outcome(iteration) is None:
            self._said.setdefault(iteration, {})[worker] = number

    def go_on(self, worker: str, iteration: int) -> None:
        """Note that a worker is at an iteration, and does without the agreements before it."""
        self._at[worker] = iteration

    def forget(self, worker: str) -> None:
        """Forget where a worker was that comes, or is gone; what it waited for has failed."""
        self._at.pop(worker, None)
        for iteration in [k for k, said in self._said.items() if worker in said]:
            self._end(iteration, FAILED)

    def settle(self, members: Iterable[str]) -> None:
        """End the agreements in which every member has said its number, or one never will."""
        if not self._said:
            return
        members = list(members)
        for iteration, said in list(self._said.items()):
            silent = [worker for worker in members if worker not in said]
            if members and not silent:
                self._end(iteration, Outcome(min(said[worker] for worker in members)))
            elif any(self._at.get(worker, -1) > iteration for worker in silent):
                self._end(iteration, FAILED)

    def fail(self, iteration: int) -> None:
        """Give up an agreement, for everybody, unless it has ended already."""
        if self.outcome(iteration) is None:
            self._end(iteration, FAILED)

    def outcome(self, iteration: int) -> Outcome | None:
        """Return how the agreement of an iteration ended; None where it is still open."""
        if iteration <= self._forgotten:
            return FAILED
        return self._outcomes.get(iteration)

    def _end(self, iteration: int, outcome: Outcome) -> None:
        self.num_ended += 1
        self._said.pop(iteration, None)
        self._outcomes[iteration] = outcome
        while len(self._outcomes) > KEPT_OUTCOMES:
            oldest = min(self._outcomes)
            del self._outcomes[oldest]
            self._forgotten = oldest
            self._said = {k: said for k, said in self._said.items() if k > oldest}
