"""The loader of a local partition: batches of the planned size, from this worker's own samples.

The samples of a partition are read in traversals, each sample once per traversal; a batch may span
the end of one and the beginning of the next. The plans determine how many samples each worker has
consumed, so that every worker knows the traversal counts of all. After a migration, all workers
begin to read their new partitions at the same iteration boundary.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch.utils.data._utils.pin_memory import pin_memory as pin

from evenstep.core import UNLIMITED, Ints, SavedState, sealed
from evenstep.core.dealing import num_iterations
from evenstep.errors import InvalidSetting
from evenstep.partitions import MigrationRule
from evenstep.partitions.rules.rule import MigrationState
from evenstep.partitions.rules.traversals import ReadingPosition, Traversals, counted_samples
from evenstep.pytorch.attribution import Attribution
from evenstep.pytorch.background_processes import Serving
from evenstep.pytorch.chunks import Chunks
from evenstep.pytorch.fetching import Packing
from evenstep.pytorch.loader_options import LocalLoaderOptions, check_loading
from evenstep.pytorch.local_carrier import AgentCarrier, start_agents
from evenstep.pytorch.local_migration import LocalMigration, restored, saved
from evenstep.pytorch.local_source import AllSamples, LocalSource, Snapshot, Source, read_all
from evenstep.training.collective import Collective, gather_values, require_agreement
from evenstep.training.epochs import check_position
from evenstep.training.iteration import Iteration, Pass
from evenstep.training.loop import Loop


@dataclass(frozen=True, eq=False)
class _Point:
    """A point that the loader can go back to, if nothing is trained on after it."""

    epoch: int
    position: int
    offset: int
    """The samples of the epoch that earlier iterations had."""
    reading: ReadingPosition
    rule: MigrationState | None


class LocalLoader:
    """Iterates over batches of this worker's own samples; made by `Balancer.local_loader`."""

    _is_accelerate_prepared = True
    """Makes `accelerator.prepare_data_loader` of Hugging Face return the loader as it is."""

    def __init__(
        self,
        loop: Loop,
        attribution: Attribution,
        ended: Callable[[], None],
        source: LocalSource,
        snapshot: Snapshot,
        all_samples: AllSamples,
        migration: LocalMigration | None = None,
        *,
        importance: bool = False,
        shuffle: bool = True,
        seed: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        num_workers: int = 0,
        **loading: Any,
    ) -> None:
        check_loading(loading)
        self._loop, self._ended, self._source = loop, ended, source
        self._attribution = attribution
        self._importance, self._shuffle, self._seed = importance, shuffle, seed
        self._packing = Packing(collate_fn)
        self._pin_memory = pin_memory and torch.cuda.is_available()
        self._num_workers, self._loading = num_workers, loading
        self._migration = migration
        self._samples = all_samples.samples
        self._reading = ReadingPosition.of(all_samples.sizes, all_samples.digests)
        self._epoch = self._position = self._offset = 0
        self._passed: Pass | None = None
        """The running pass."""
        self._begun: _Point | None = None
        """Where it began."""
        self._handed_out: deque[tuple[Iteration, _Point]] = deque()
        """The batches that may be outstanding, each with the point before it."""
        self._open(snapshot)

    def __len__(self) -> int:
        """The number of iterations of an epoch, which uses as many samples as all workers have."""
        left = max(0, int(self.sizes.sum()) - self._offset)
        return self._position + num_iterations(left, self._loop.total)

    @property
    def partition(self) -> Any:
        """The partition or data set that this worker reads now."""
        return self._snapshot.dataset

    @property
    def sizes(self) -> Ints:
        """The current number of samples of each worker."""
        return self._reading.sizes

    @property
    def traversals(self) -> Traversals:
        """How often workers have traversed their partitions since the last change of these."""
        return self._reading.traversals

    @property
    def num_migrations(self) -> int:
        """The number of migrations that were begun."""
        return 0 if self._migration is None else self._migration.number

    @property
    def batch_size(self) -> int:
        """This worker's current batch size."""
        return self._loop.batch_size

    def __iter__(self) -> Iterator[Any]:
        self._settle()
        loop = self._loop
        self._passed = passed = Pass()
        self._begun = self._point()
        try:
            while self._position < len(self):
                iteration = loop.begin(passed)
                self._migrate(iteration.number)
                sizes = iteration.plan.sizes
                batch = self._next(int(sizes[loop.worker]))
                consumed = int(self._reading.consumed.sum())
                at = (self._epoch, self._position, self.num_migrations, consumed)
                counted = counted_samples(self.sizes, sizes) if self._importance else None
                batch = pin(batch) if self._pin_memory else batch
                loop.has_batch(sizes, at, importance=counted)
                own = int(sizes[loop.worker]) or loop.min_trainable
                self._attribution.hand_out(iteration, own, batch)
                self._trained_to()
                self._handed_out.append((iteration, self._point()))
                # Before yield, as a checkpoint in the body of the loop comes after this batch.
                self._count(sizes)
                self._position += 1
                self._offset += int(sizes.sum())
                yield batch
        finally:
            loop.leave(passed)
        loop.after(passed, self._ended)
        self._next_epoch()
        self._begun = None

    def state_dict(self) -> dict[str, Any]:
        """Return the positions of all workers, for a checkpoint."""
        point = self._trained_to()
        return sealed(
            {
                "epoch": point.epoch,
                "position": point.position,
                "offset": min(point.offset, int(point.reading.sizes.sum())),
                "seed": self._seed,
                "shuffle": self._shuffle,
                "reading": point.reading.state(),
                "rule": None if point.rule is None else saved(point.rule),
            }
        )

    def check_state(self, state: Mapping[str, Any]) -> _Point:
        """Return the point of a checkpoint, or raise an error if it cannot be continued."""
        fields = SavedState("a local loader", state, "epoch", "position", "seed", "reading", "rule")
        reading, now = ReadingPosition.restored(fields["reading"]), self._reading
        # An epoch uses as many samples as all workers have, and every iteration at least one. In
        # an earlier version, the last one could use more.
        num_samples, total = int(reading.sizes.sum()), self._loop.total
        position = fields.whole("position", most=num_samples)
        offset = position * total
        if "offset" in fields:
            offset = fields.whole("offset", position, num_samples + total if position else 0)
        check_position(state, {"seed": self._seed, "shuffle": self._shuffle})
        rule = None if fields["rule"] is None else restored(fields["rule"], reading.sizes)
        if not reading.has(now.sizes, now.digests):
            reading, rule = reading.restart(now.sizes, now.digests), None
        return _Point(fields.whole("epoch", most=UNLIMITED), position, offset, reading, rule)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a checkpoint.

        If partitions have changed since, as samples have moved or workers are others, all workers
        begin a new traversal of their samples, in an order that was not used yet. A state that is
        refused changes nothing.
        """
        point = self.check_state(state)
        self._reading, self._begun = point.reading, None
        if self._migration is not None and point.rule is not None:
            self._migration.go_back(point.rule)
        self._epoch, self._position, self._offset = point.epoch, point.position, point.offset
        self._open(self._snapshot)

    def _point(self) -> _Point:
        rule = None if self._migration is None else self._migration.state
        return _Point(self._epoch, self._position, self._offset, self._reading, rule)

    def _trained_to(self) -> _Point:
        """Forget batches that were trained on, and return the point before the first other one."""
        outstanding = self._loop.outstanding
        while self._handed_out and self._handed_out[0][0] not in outstanding:
            self._handed_out.popleft()
        return self._handed_out[0][1] if self._handed_out else self._point()

    def _open(self, snapshot: Snapshot) -> None:
        """Read from a snapshot from now on."""
        self._snapshot = snapshot
        loop = self._loop
        self._chunks = Chunks(
            snapshot.dataset,
            self._reading.stream(loop.worker, self._seed, self._shuffle),
            self._packing,
            lambda: int(loop.newest_plan.sizes[loop.worker]),
            self._num_workers,
            self._loading,
        )

    def _next(self, size: int) -> Any:
        """Return the next `size` samples; for a size of 0, a smallest batch of borrowed ones."""
        begin = int(self._reading.consumed[self._loop.worker])
        if size == 0:
            return self._chunks.borrow(begin, begin + self._loop.min_trainable)
        return self._chunks.take(begin, begin + size)

    def _count(self, sizes: Ints) -> None:
        self._reading = self._reading.advance(sizes)
        if self._migration is not None:
            self._migration.observe(sizes)

    def _migrate(self, iteration: int) -> None:
        """End a migration that has finished, and begin one that is due."""
        migration = self._migration
        if migration is None:
            return
        if migration.has_ended is not None:
            with self._loop.away():
                self._loop.note(iteration, self._end(migration, migration.has_ended))
            if self._begun is not None:
                # Not to go back before the end of a migration, as the other workers do not.
                self._begun = replace(self._begun, rule=migration.state)
        begins = migration.begin_if_due()
        if begins is not None:
            self._loop.note(iteration, begins)

    def _end(self, migration: LocalMigration, is_over: bool) -> str:
        """Switch to the new partitions, unless one of the workers cannot; return a note."""
        if not is_over:
            return migration.end(self.sizes, None, "partitions stay as they are for training")
        snapshot, all_samples = read_all(self._source, self._loop.collective)
        problem = all_samples.problem
        if not problem and all_samples.samples != self._samples:
            problem = "partitions must hold the same samples as before, together"
        if problem or snapshot is None:
            return migration.end(self.sizes, None, f"training goes on with what it has, {problem}")
        if not self._reading.has(all_samples.sizes, all_samples.digests):
            self._reading = self._reading.restart(all_samples.sizes, all_samples.digests)
            self._open(snapshot)
            # Loading processes are restarted, and nothing is prefetched.
            self._loop.timer.spoil()
            if self._begun is not None:
                # The position in the old partitions cannot be restored.
                self._begun = replace(self._begun, reading=self._reading)
        return migration.end(self.sizes, all_samples.caps, "")

    def _next_epoch(self) -> None:
        self._epoch, self._position, self._offset = self._epoch + 1, 0, 0

    def _settle(self) -> None:
        """End an epoch that was left early; the next one continues from there.

        If nothing was trained on, as in a look at one batch, the epoch is begun again.
        """
        begun, self._begun = self._begun, None
        passed, self._passed = self._passed, None
        if begun is None or passed is None:
            return
        self._loop.forget(passed)
        if passed.has_trained:
            self._next_epoch()
            return
        self._position, self._offset, self._reading = begun.position, begun.offset, begun.reading
        if self._migration is not None and begun.rule is not None:
            self._migration.go_back(begun.rule)


Made = TypeVar("Made")


def make_local_loader(
    loop: Loop,
    attribution: Attribution,
    ended: Callable[[], None],
    source: Source,
    options: LocalLoaderOptions,
) -> LocalLoader:
    """Return the loader of a worker's own samples; all workers must call it."""
    loading: dict[str, Any] = dict(options)
    rule: MigrationRule | None = loading.pop("rule", None)
    serving: Serving | None = loading.pop("serving", None)
    local, how = LocalSource(source), (loop, attribution, ended)
    collective = loop.collective
    _require_agreement(local, rule, loading, collective)
    _together(collective, lambda: _check_serving(serving, rule))
    if rule is None:
        snapshot, all_samples = _read(local, collective)
        return _together(
            collective, lambda: LocalLoader(*how, local, snapshot, all_samples, **loading)
        )
    if local.folder is None:
        raise InvalidSetting(
            "samples can migrate between partitions on disk (evenstep.partitions.Partition), "
            f"got a rule for {type(source).__name__}"
        )
    serving = serving or Serving()
    seed = loading.get("seed", 0)
    agent, addresses = start_agents(local.folder, serving, collective, seed)
    try:
        snapshot, all_samples = _read(local, collective)
        carrier = None
        if loop.worker == 0:
            carrier = AgentCarrier(addresses, serving, seed)
        migration = LocalMigration(rule, all_samples.sizes, all_samples.caps, carrier, agent)
        loader = _together(
            collective,
            lambda: LocalLoader(*how, local, snapshot, all_samples, migration, **loading),
        )
        assert loop.column is not None, "the loop of a DDP model has an extra column"
        loop.column.take(migration)
    except BaseException:
        agent.close()
        raise
    return loader


def _require_agreement(
    local: LocalSource,
    rule: MigrationRule | None,
    loading: Mapping[str, Any],
    collective: Collective,
) -> None:
    """Raise InvalidSetting on all workers unless their settings are the same."""
    require_agreement(
        {
            "rule": rule,
            "partition on disk": local.folder is not None,
            "importance": loading.get("importance", False),
            "shuffle": loading.get("shuffle", True),
            "seed": loading.get("seed", 0),
        },
        collective,
    )
    if not (rule is None or isinstance(rule, MigrationRule)):
        raise InvalidSetting(f"rule must be a MigrationRule or None, got {rule!r}")


def _check_serving(serving: Serving | None, rule: MigrationRule | None) -> None:
    if not (serving is None or isinstance(serving, Serving)):
        raise InvalidSetting(f"serving must be a Serving or None, got {serving!r}")
    if serving is not None and rule is None:
        raise InvalidSetting("serving goes with a rule, without which no samples migrate")


def _together(collective: Collective, make: Callable[[], Made]) -> Made:
    """Return the result of `make`; if it fails on one worker, raise on all of them."""
    made: list[Made] = []
    problem, cause = "", None
    try:
        made.append(make())
    except Exception as error:
        problem, cause = str(error) or repr(error), error
    for worker, theirs in enumerate(gather_values(collective, problem)):
        if theirs:
            raise InvalidSetting(f"worker {worker}: {theirs}") from cause
    return made[0]


def _read(local: LocalSource, collective: Collective) -> tuple[Any, AllSamples]:
    snapshot, all_samples = read_all(local, collective)
    if all_samples.problem:
        raise InvalidSetting(
            f"every worker must be able to read its samples; {all_samples.problem}"
        )
    if local.folder is not None:
        digest, count = Counter(all_samples.digests.tolist()).most_common(1)[0]
        if count > 1:
            first = all_samples.digests.tolist().index(digest)
            raise InvalidSetting(
                f"every worker must have a partition of its own, got that of worker {first} "
                f"{count} times"
            )
    return snapshot, all_samples
