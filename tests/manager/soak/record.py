"""What the workers of a soak have written down, and what must be true of it."""

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from tests.manager.soak.jobs import Loop


@dataclass(frozen=True)
class Applied:
    """A plan that a worker has applied in an iteration; number -1 where it sat it out."""

    worker: str
    iteration: int
    number: int
    sizes: tuple[int, ...]
    time: float
    asked: bool
    """Whether the manager was there to be asked."""


@dataclass(frozen=True)
class Record:
    """All that was applied in a job."""

    loop: Loop
    applied: list[Applied]
    sat_out: int
    torn: int

    @property
    def num_iterations(self) -> int:
        return len({one.iteration for one in self.applied})

    def summary(self) -> str:
        plans = {one.number for one in self.applied}
        return (
            f"job {self.loop.job}: {self.loop.workers} workers, {self.num_iterations} iterations "
            f"with {len(plans)} plans, {self.sat_out} times sat out, {self.torn} torn lines, "
            f"{len(self.disagreements())} iterations with two plans"
        )

    def wrong_totals(self) -> list[Applied]:
        return [one for one in self.applied if sum(one.sizes) != self.loop.total]

    def disagreements(self) -> list[list[Applied]]:
        """Return, for every iteration in which not all applied the same, what they applied."""
        return [its for its in self._iterations() if len({(a.number, a.sizes) for a in its}) > 1]

    def disagreements_since(self, kills: list[tuple[float, float]]) -> list[list[Applied]]:
        """Return the disagreements after a kill of the manager and before all workers agree again.

        A kill has the moment before it and the one at which the manager is started again: what
        workers write down between them may be an answer from before the kill.
        """
        common = [
            min(a.time for a in its)
            for its in self._iterations()
            # A worker that was not there may still hold another plan.
            if len({a.worker for a in its}) == self.loop.workers and all(a.asked for a in its)
        ]
        found = []
        for its in self.disagreements():
            last = max(a.time for a in its)
            again = max((start for before, start in kills if before < last), default=None)
            if again is not None and not any(again < when < last for when in common):
                found.append(its)
        return found

    def furthest(self, begin: float, end: float) -> int:
        """Return the furthest iteration that was applied in a span of time; -1 for none."""
        return max((a.iteration for a in self.applied if begin <= a.time < end), default=-1)

    def _iterations(self) -> list[list[Applied]]:
        by_iteration = defaultdict(list)
        for one in self.applied:
            by_iteration[one.iteration].append(one)
        return list(by_iteration.values())


def read(loop: Loop, folder: Path) -> Record:
    applied, sat_out, torn = [], 0, 0
    for path in sorted(folder.glob(f"{loop.job}.*.applied")):
        worker = path.name.removeprefix(f"{loop.job}.").removesuffix(".applied")
        for line in path.read_text().splitlines():
            words = line.split()
            if len(words) != 5:
                torn += 1
            elif words[1] == "-":
                sat_out += 1
            else:
                sizes = tuple(map(int, words[2].split(",")))
                k, number, when, asked = int(words[0]), int(words[1]), float(words[3]), words[4]
                applied.append(Applied(worker, k, number, sizes, when, asked == "ok"))
    return Record(loop, applied, sat_out, torn)


def newest_iteration(loop: Loop, folder: Path) -> int:
    """Return the furthest iteration that a job has come to by now; -1 before the first."""
    found = -1
    for path in folder.glob(f"{loop.job}.*.applied"):
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - 1000))
            for line in file.read().split(b"\n")[1:-1]:
                if line.endswith((b"ok", b"failed")) and b" -" not in line:
                    found = max(found, int(line.split()[0]))
    return found
