"""Signs of life: which worker died or hangs, and a watchdog that ends a job that hangs.

A failed exchange does not say which worker is missing. So each worker writes a sign of life once a
second into a store that all of them can read, from a thread of its own: the training never waits
for it. Only a worker whose training stands still reads the signs of the others. A worker that died
or is stopped writes no more signs; one that hangs does, but stays in its iteration.
"""

from __future__ import annotations

import json
import os
import platform
import secrets
import statistics
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass
from typing import NamedTuple, Protocol

from evenstep.errors import InvalidSetting, WorkerLost
from evenstep.training.collective import Collective, gather_values

BEAT = 1.0
"""Seconds between two signs of life."""
SILENCE = 5.0
"""Seconds without a sign of life after which a worker counts as lost."""
LEAST = 60.0
"""Seconds for which a worker that is heard of may stay in an iteration in any case."""
_LONG = 10
"""Usual iterations after which a worker that others wait for is named."""
_FEWEST = 5
"""Measured spans after which the usual iteration is known."""
_HURRY = 0.25
"""Seconds between two signs of life while a failure is being explained."""

WORK, EXCHANGE, AWAY = "at work", "in the exchange", "between iterations"
_FAILING, _LOST, _ENDED = "failing", "lost", "ended"

_NOBODY = "all workers are heard of, and none is behind"
_RESTART = (
    "To continue after a loss, start the workers with torchrun --max-restarts=N and continue from "
    "a checkpoint."
)
_SLOW = (
    "If it is only slow, straggler='bench' or 'restart' helps; if it works long between two "
    "iterations, a longer timeout of the process group; watchdog=N ends a job that hangs, with the "
    "stacks of all workers."
)


class Store(Protocol):
    """Holds texts that all workers can read, like a store of torch."""

    def set(self, key: str, value: str, /) -> None: ...

    def multi_get(self, keys: list[str], /) -> list[bytes]: ...


class SharedStore(NamedTuple):
    """A connection to a store that is used for nothing else, and words for the process with it."""

    store: Store
    keeper: str


@dataclass(frozen=True)
class Progress:
    """How far the training of a worker has come."""

    phase: str
    """At work on an iteration, in its exchange, or between iterations."""
    finished: int
    """k: the number of finished iterations; the one that is being exchanged counts."""
    begun: int = 0
    """Iterations that were begun."""


@dataclass(frozen=True)
class Sign:
    """A sign of life, as a worker writes it."""

    beat: int
    phase: str
    finished: int
    note: str = ""

    @property
    def iteration(self) -> int:
        """The iteration that the worker is in, or begins next."""
        return self.finished - (self.phase == EXCHANGE)


class Signs:
    """The last signs of life of all workers, and when they came.

    `who` has words for each worker. Times are those of the worker that reads.

    >>> signs = Signs(["worker 0 (a)", "worker 1 (b)"], 0)
    >>> for now in (0.0, 6.0):
    ...     signs.take([Sign(int(now), EXCHANGE, 18), Sign(3, WORK, 17)], now)
    >>> signs.findings()
    ['worker 1 (b) was last heard of 6 s ago, in iteration 17: it died, is stopped or is cut off']
    >>> signs.take([Sign(7, EXCHANGE, 18), Sign(4, WORK, 17)], 7.0)
    >>> signs.findings()
    ['worker 1 (b) is running, but still at work in iteration 17']
    """

    def __init__(self, who: Sequence[str], worker: int) -> None:
        self._who = who
        self._worker = worker
        self._signs: list[Sign | None] = [None] * len(who)
        self._heard = [0.0] * len(who)
        self._now = 0.0

    def take(self, signs: Sequence[Sign], now: float) -> None:
        """Take the signs of all workers, which were read at this time."""
        for i, sign in enumerate(signs):
            if sign != self._signs[i]:
                self._signs[i], self._heard[i] = sign, now
        self._now = now

    def findings(self) -> list[str]:
        """Return words on each worker that an exchange fails for, or waits for."""
        return [words for i, sign in self._others() if (words := self._finding(i, sign))]

    def silent(self) -> list[int]:
        """Return the workers that are not heard of, and have not said why."""
        return [i for i, sign in self._others() if self._is_silent(i, sign)]

    def late(self, *phases: str) -> list[int]:
        """Return the workers in these phases that are heard of, and are behind this one."""
        return [
            i
            for i, sign in self._others()
            if sign.phase in phases and self._is_behind(sign) and not self._is_silent(i, sign)
        ]

    def is_settled(self, since: float) -> bool:
        """Whether it is known of each other worker if it is alive, from signs since that time."""
        return all(
            sign.phase in (_FAILING, _LOST, _ENDED)
            or self._heard[i] >= since + BEAT
            or self._is_silent(i, sign)
            for i, sign in self._others()
        )

    def has(self, *phases: str) -> bool:
        """Whether a worker that is heard of is in one of these phases."""
        return any(
            sign.phase in phases and self._now - self._heard[i] < SILENCE
            for i, sign in self._others()
        )

    def name(self, worker: int) -> str:
        """Return the words for a worker."""
        return self._who[worker]

    def _others(self) -> list[tuple[int, Sign]]:
        known = enumerate(self._signs)
        return [(i, sign) for i, sign in known if sign is not None and i != self._worker]

    def _is_silent(self, worker: int, sign: Sign) -> bool:
        explained = sign.phase in (_FAILING, _LOST, _ENDED)
        return not explained and self._now - self._heard[worker] >= SILENCE

    def _is_behind(self, sign: Sign) -> bool:
        mine = self._signs[self._worker]
        return mine is not None and sign.finished < mine.finished

    def _finding(self, worker: int, sign: Sign) -> str | None:
        who, k = self._who[worker], sign.iteration
        if sign.phase == _ENDED:
            how = f"in iteration {k}, by {sign.note}" if sign.note else f"before iteration {k}"
            return f"{who} has ended {how}"
        if self._is_silent(worker, sign):
            seconds = self._now - self._heard[worker]
            return (
                f"{who} was last heard of {seconds:.0f} s ago, in iteration {k}: it died, is "
                "stopped or is cut off"
            )
        if sign.phase in (_FAILING, _LOST) or not self._is_behind(sign):
            return None
        where = f"in iteration {k}" if sign.phase != AWAY else f"before iteration {k}"
        return f"{who} is running, but still {sign.phase} {where}"


class UsualIteration:
    """The usual seconds of an iteration: the median over spans of some of them.

    >>> usual = UsualIteration()
    >>> for second in range(8):
    ...     usual.observe(10 * second, float(second))
    >>> usual.seconds
    0.1
    """

    def __init__(self) -> None:
        self._last: tuple[int, float] | None = None
        self._spans: deque[float] = deque(maxlen=64)

    def observe(self, finished: int, now: float) -> None:
        """Take the number of finished iterations at a time."""
        if self._last is None or finished < self._last[0]:
            self._last = finished, now
        elif finished > self._last[0]:
            self._spans.append((now - self._last[1]) / (finished - self._last[0]))
            self._last = finished, now

    @property
    def seconds(self) -> float | None:
        """The median; None as long as little is known."""
        return statistics.median(self._spans) if len(self._spans) >= _FEWEST else None


class Heartbeat:
    """Writes the signs of life of one worker, and reads those of the others when it stands still.

    `look` returns how far the training has come. `note` writes into the run log, if there is one.
    With a `watchdog`, the job ends when it stands still in an iteration for that many times the
    usual one.
    """

    def __init__(
        self,
        shared: SharedStore,
        keys: Sequence[str],
        signs: Signs,
        worker: int,
        look: Callable[[], Progress],
        note: Callable[[int, str], None],
        watchdog: float | None = None,
    ) -> None:
        self._store, self._keeper = shared
        self._key, self._keys, self._stop_key = keys[worker], list(keys), f"{keys[0]}/stop"
        self._signs = signs
        self._who = signs.name(worker)
        self._is_first = worker == 0
        self._look = look
        self._note = note
        self._watchdog = watchdog
        self._num_beats = 0
        self._is_gone = False
        """Whether the store cannot be reached any more."""
        self._progress = look()
        self._since = time.monotonic()
        """The time from which on the training stands still."""
        self._excused = self._since
        """The last time when there was a reason to stand still, such as an evaluation."""
        self._usual = UsualIteration()
        self._said: set[int | None] = set()
        self._failed_at: float | None = None
        self._judged_at: float | None = None
        self._verdict = f"the signs of life of the workers cannot be read from {self._keeper}"
        self._is_judged = threading.Event()
        self._is_closing = False
        self._reason = ""
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name="evenstep-heartbeat", daemon=True)

    def announce(self) -> None:
        """Write the first sign, which the others may read from then on."""
        self._write(self._progress.phase)
        if self._is_first:
            self._store.set(self._stop_key, "")

    def start(self) -> None:
        self._thread.start()

    def explain(self, error: Exception) -> WorkerLost | None:
        """Return which worker is missing, after a failed exchange; takes some seconds.

        None, and a line on stderr, if all workers are there.
        """
        is_first = self._failed_at is None
        if is_first:
            self._failed_at = time.monotonic()
        self._wake.set()
        self._is_judged.wait(4 * SILENCE)
        k = self._iteration
        if is_first:
            self._note(k, self._verdict or _NOBODY)
        if not self._verdict:
            _say(f"the exchange of iteration {k} failed: {_NOBODY}")
            return None
        said = str(error).strip().partition("\n")[0]
        advice = _SLOW if self._signs.late(WORK, EXCHANGE, AWAY) else _RESTART
        return WorkerLost(
            f"all workers must complete the exchange of iteration {k}, but it failed: "
            f"{self._verdict}. {advice} The process group says: {said}"
        )

    def close(self) -> None:
        """Write the last sign, with the error that ends the program, if there is one."""
        error = getattr(sys, "last_value", None)
        self._reason = "" if error is None else f"{type(error).__name__}: {error}"[:200]
        self._is_closing = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(2 * BEAT)

    def _run(self) -> None:
        while not self._is_closing:
            self._wake.wait(BEAT if self._failed_at is None else _HURRY)
            self._wake.clear()
            self._beat(time.monotonic())
        self._write(_ENDED if self._failed_at is None else _LOST, self._reason)

    def _beat(self, now: float) -> None:
        progress = self._look()
        if progress != self._progress:
            self._progress, self._since = progress, now
            if self._said:
                _say(f"{self._who} continues in iteration {self._iteration}")
                self._said.clear()
        self._usual.observe(progress.finished, now)
        self._write(self._phase)
        if self._failed_at is not None:
            self._read(now)
            self._judge(now, self._failed_at)
        elif now - self._since >= 2 * BEAT:
            self._read(now)
            if progress.phase != AWAY:
                self._say_lost(now - self._since)
            if self._watchdog is not None:
                self._watch(now, self._watchdog)

    @property
    def _phase(self) -> str:
        if self._failed_at is None:
            return self._progress.phase
        return _FAILING if self._judged_at is None else _LOST

    @property
    def _iteration(self) -> int:
        """The iteration that this worker is in."""
        progress = self._look()
        return progress.finished - (progress.phase == EXCHANGE)

    def _write(self, phase: str, note: str = "") -> None:
        self._num_beats += 1
        sign = Sign(self._num_beats, phase, self._look().finished, note)
        text = json.dumps(astuple(sign))
        self._try(lambda: self._store.set(self._key, text))

    def _read(self, now: float) -> None:
        def read() -> None:
            texts = self._store.multi_get(self._keys)
            self._signs.take([Sign(*json.loads(text)) for text in texts], now)

        self._try(read)

    def _try(self, act: Callable[[], None]) -> None:
        """Use the store; any error of its means that it is gone, which is a finding by itself."""
        if not self._is_gone:
            try:
                act()
            except Exception:
                self._is_gone = True

    @property
    def _has_lost_store(self) -> bool:
        """Whether the store is gone, though no worker has ended that may have held it."""
        return self._is_gone and not self._signs.has(_FAILING, _LOST, _ENDED)

    def _findings(self) -> str:
        found = self._signs.findings()
        if self._has_lost_store:
            found.append(f"{self._keeper} died or is cut off: its store cannot be reached")
        return "; ".join(found)

    def _judge(self, now: float, failed_at: float) -> None:
        """Find out which worker is missing, and stay until the others have found out too.

        A worker that ended before might take the store with it, or make torchrun end the others.
        """
        if self._judged_at is None:
            patience = SILENCE + 2 * BEAT
            if self._is_gone or self._signs.is_settled(failed_at) or now > failed_at + patience:
                self._verdict = self._findings()
                self._judged_at = now
        elif self._is_gone or not self._signs.has(_FAILING) or now > self._judged_at + SILENCE:
            self._is_judged.set()

    def _say_lost(self, still: float) -> None:
        """Print once which workers are missing, as the failure may surface in code of the user."""
        missing: set[int | None] = set(self._signs.silent())
        if self._has_lost_store:
            missing.add(None)
        usual = self._usual.seconds
        if usual is not None and still > max(LEAST, _LONG * usual):
            missing.update(self._signs.late(WORK))
        if missing - self._said:
            _say(f"{self._who} waits in iteration {self._iteration}: {self._findings()}")
        self._said |= missing

    def _watch(self, now: float, watchdog: float) -> None:
        """End the job if it hangs, or if another worker has found that it does."""
        self._try(self._obey)
        usual = self._usual.seconds
        if usual is None or self._progress.phase == AWAY or self._signs.late(AWAY):
            self._excused = now
            return
        still = now - max(self._since, self._excused)
        if still <= max(LEAST, watchdog * usual):
            return
        text = (
            f"the watchdog ends the job: {self._who} was {self._progress.phase} in iteration "
            f"{self._iteration} for {still:.0f} s, and an iteration usually takes {usual:.3g} s; "
            f"{self._findings() or _NOBODY}"
        )
        self._try(lambda: self._store.set(self._stop_key, text))
        self._end(text)

    def _obey(self) -> None:
        (text,) = self._store.multi_get([self._stop_key])
        if text:
            self._end(text.decode())

    def _end(self, text: str) -> None:
        """Print the stacks of this worker, and end it once the others have printed theirs."""
        try:
            k = self._iteration
            head = f"{text}\n{self._who}, {self._progress.phase} in iteration {k}:\n{_stacks()}"
            _say(head.replace("\n", f"\n[worker {self._who.split()[1]}] "))
            self._note(k, text)
            deadline = time.monotonic() + SILENCE
            while time.monotonic() < deadline:
                self._write(_ENDED, "its watchdog")
                self._read(time.monotonic())
                if self._is_gone or not self._signs.has(WORK, EXCHANGE, AWAY):
                    break
                time.sleep(_HURRY)
        finally:
            os._exit(1)


def make_heartbeat(
    collective: Collective,
    names: Sequence[str],
    connect: Callable[[], SharedStore | None] | None,
    look: Callable[[], Progress],
    note: Callable[[int, str], None],
    watchdog: float | None,
) -> Heartbeat | None:
    """Return the running heartbeat of this worker; None if there is no store for it.

    `connect` is None where the framework has no store. All workers must call it.
    """
    store = None if connect is None else _connected(connect)
    facts = [secrets.token_hex(8), os.getpid(), platform.node(), store is not None]
    everybody = [facts] if connect is None else gather_values(collective, facts)
    if store is None or not all(theirs[-1] for theirs in everybody):
        if watchdog is not None:
            raise InvalidSetting(
                "watchdog takes workers that share a TCP store, as the process groups of torch "
                "have by default, got workers without one"
            )
        return None
    who = [
        f"worker {i} ({name}, process {pid}{'' if host in name else f' on {host}'})"
        for i, (name, (_, pid, host, _)) in enumerate(zip(names, everybody, strict=True))
    ]
    # A store may outlive a restart, and serve several balancers.
    keys = [f"evenstep/{everybody[0][0]}/{i}" for i in range(len(who))]
    signs = Signs(who, collective.worker)
    heartbeat = Heartbeat(store, keys, signs, collective.worker, look, note, watchdog)
    heartbeat.announce()
    gather_values(collective, None)  # All keys exist from here on.
    heartbeat.start()
    return heartbeat


def _connected(connect: Callable[[], SharedStore | None]) -> SharedStore | None:
    try:
        return connect()
    except Exception:
        return None


def _stacks() -> str:
    """Return the stacks of all threads but this one, the main thread first."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    main = threading.main_thread().ident
    frames = sys._current_frames()
    frames.pop(threading.get_ident(), None)
    return "\n".join(
        f"thread {names.get(ident, ident)}:\n{''.join(traceback.format_stack(frame)).rstrip()}"
        for ident, frame in sorted(frames.items(), key=lambda item: item[0] != main)
    )


def _say(text: str) -> None:
    # A thread that ended with an error would look like a worker that died.
    with suppress(OSError, ValueError):
        print(f"evenstep: {text}", file=sys.stderr, flush=True)
