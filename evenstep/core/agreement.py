"""Agreements: which plan all workers use in an iteration, where no gradient exchange decides it.

Every member says the number of the newest plan that it holds; the smallest of these numbers is the
plan that all members hold. An agreement has one outcome, which never changes: a number, or failure.
It fails for all members as soon as it fails for one, and then all keep the last common plan. It
fails when a member reaches a later iteration without having said its number, and when a member that
has said its number leaves or joins again, because that member will not learn the outcome.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

KEPT_OUTCOMES = 8
"""Outcomes that can still be asked for; an older one is answered as failed."""


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
        """Record that a worker is at an iteration, and takes no part in earlier agreements."""
        self._at[worker] = iteration

    def forget(self, worker: str) -> None:
        """Forget the position of a worker that joins or leaves; agreements it was part of fail."""
        self._at.pop(worker, None)
        for iteration in [k for k, said in self._said.items() if worker in said]:
            self._end(iteration, FAILED)

    def settle(self, members: Iterable[str]) -> None:
        """End the agreements in which all members have said their number, or one never will."""
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
        """Fail an agreement for all members, unless it has ended already."""
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
