"""Replay a trace as real load on this machine, so that workers on it are contended.

Processes use as much CPU time as in the trace, on the given cores, and hold real memory. The trace
is a CSV file with the columns start,end,cpu,memory (tasks, with the shares of the machine that each
takes) or second,cpu,memory (the shares that are left from then on), or B:usage or B:tasks with a
worker of Cluster-B; docs/load.md. The load ends with the trace, after --duration, or with Ctrl-C,
and leaves no processes.

examples:
  evenstep load B:tasks --worker m4.2xlarge-0 --speedup 10
  evenstep load tasks.csv --cores 0-1 --duration 60 --json
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import psutil

from evenstep.cli.arguments import parse_numbers, positive, share
from evenstep.cli.printing import busy, print_json, say
from evenstep.cli.stopping import Stop
from evenstep.measure.cgroups import memory_limit
from evenstep.measure.memory import available_memory
from evenstep.simulator.load.load import Load, usable_cores
from evenstep.simulator.load.replay import Level, read_trace, replay

_TICK = 0.5
"""Seconds between two readings of the available memory."""
_MIB = 1 << 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("trace", metavar="TRACE", help="a CSV file, or B:usage or B:tasks")
    parser.add_argument("--worker", metavar="NAME", help="of Cluster-B, like m4.2xlarge-0")
    parser.add_argument("--cores", metavar="LIST", help="like 0-1,3; default all that may be used")
    parser.add_argument(
        "--speedup", type=positive, default=1.0, metavar="X", help="X times as fast as it was"
    )
    parser.add_argument(
        "--duration", type=positive, metavar="S", help="seconds; default as long as the trace"
    )
    parser.add_argument(
        "--memory-cap",
        type=share,
        default=0.5,
        metavar="F",
        help="hold at most this share of the available memory, default 0.5",
    )
    parser.add_argument("--json", action="store_true", help="print a summary as JSON")


@dataclass(frozen=True)
class LoadOutcome:
    """The wanted and the real load of one level."""

    second: float
    """The start of the level in the trace."""
    duration: float
    """Real duration, in seconds."""
    cpu_wanted: float
    """Share of the cores."""
    cpu_got: float
    """CPU time of the load, as counted by the kernel, over time and cores."""
    cpu_waited: float
    """Time in which its processes waited for a CPU, over time and cores; may exceed 1."""
    memory_wanted: int
    """Bytes."""
    memory_allowed: int
    """Bytes that it was allowed to hold in the end."""
    memory_got: int
    """Bytes that were resident when the level ended."""


def run(args: argparse.Namespace) -> int:
    cores = usable_cores() if args.cores is None else parse_numbers(args.cores, "cores")
    with busy(f"reading {args.trace}"):
        trace = read_trace(args.trace, args.worker)
        levels = list(replay(trace, args.speedup, args.duration))
    watch = _watch(levels[-1].end) if sys.stderr.isatty() and not args.json else _ignore
    with Stop() as stop, Load(cores, max(level.cpu for level in levels)) as load:
        if not args.json:
            _announce(args, levels, load)
        memory = HeldMemory(load, args.memory_cap)
        outcomes = list(play(levels, load, memory, stop, watch))
    summary = _summarise(args, cores, outcomes, stop)
    if args.json:
        print_json(summary)
    else:
        _print(summary)
    return stop.exit_code


class HeldMemory:
    """The amount of memory that a load may hold."""

    def __init__(self, load: Load, cap: float) -> None:
        self._load = load
        self._cap = cap
        self._limit = memory_limit()
        total = int(psutil.virtual_memory().total)
        self.total = total if self._limit is None else min(total, self._limit.limit)

    def allowed(self, wanted: int) -> int:
        """Return the bytes to hold: the wanted amount, up to the cap."""
        free = available_memory(self._limit) + self._load.held()
        return min(wanted, int(self._cap * free))


def play(
    levels: Sequence[Level],
    load: Load,
    memory: HeldMemory,
    stop: Stop,
    watch: Callable[[Level, float], None],
) -> Iterator[LoadOutcome]:
    """Apply the levels to the machine, one after another, and yield the outcome of each."""
    begun = time.perf_counter()
    for level in levels:
        before, end = load.read(), begun + level.end
        wanted = allowed = int(level.memory * memory.total)
        if stop.is_set() or before.at >= end:
            continue
        while not stop.is_set() and (now := time.perf_counter()) < end:
            allowed = memory.allowed(wanted)
            load.set(level.cpu, allowed)
            watch(level, now - begun)
            stop.wait(min(_TICK, end - now))
        after = load.read()
        lasted = after.at - before.at
        got, waited = (
            (getattr(after, name) - getattr(before, name)) / lasted / len(load.cores)
            for name in ("running", "waiting")
        )
        yield LoadOutcome(
            level.second, lasted, level.cpu, got, waited, wanted, allowed, load.held()
        )


def _summarise(
    args: argparse.Namespace, cores: Sequence[int], outcomes: Sequence[LoadOutcome], stop: Stop
) -> dict[str, Any]:
    lasted = sum(outcome.duration for outcome in outcomes)
    wanted, got = (
        sum(getattr(outcome, name) * outcome.duration for outcome in outcomes) / max(lasted, 1e-9)
        for name in ("cpu_wanted", "cpu_got")
    )
    return {
        "trace": args.trace,
        "cores": list(cores),
        "speedup": args.speedup,
        "duration": lasted,
        "stopped": stop.name,
        "cpu_wanted": wanted,
        "cpu_got": got,
        "levels": [asdict(outcome) for outcome in outcomes],
    }


def _announce(args: argparse.Namespace, levels: Sequence[Level], load: Load) -> None:
    cpus, memories = ([getattr(level, name) for level in levels] for name in ("cpu", "memory"))
    say(
        [
            f"Load on cores {','.join(map(str, load.cores))} for {levels[-1].end:.1f} s: "
            f"{len(levels)} levels of {args.trace}, {args.speedup:g} times as fast.",
            f"CPU: {min(cpus):.0%} to {max(cpus):.0%} of each core. "
            f"Memory: {min(memories):.0%} to {max(memories):.0%}, "
            f"but at most {args.memory_cap:.0%} of the available memory.",
            f"{load.num_processes} processes; Ctrl-C ends them.",
        ]
    )


def _watch(end: float) -> Callable[[Level, float], None]:
    def show(level: Level, now: float) -> None:
        line = f"{now:7.1f} of {end:.1f} s: CPU {level.cpu:4.0%}, memory {level.memory:4.0%}"
        print(f"\r{line}\x1b[K", end="", file=sys.stderr, flush=True)

    return show


def _ignore(level: Level, now: float) -> None:
    """Show nothing."""


def _print(summary: dict[str, Any]) -> None:
    if sys.stderr.isatty():
        print(file=sys.stderr)
    print("  second    lasted  CPU wanted    got  memory wanted         got")
    for level in summary["levels"]:
        print(
            f"{level['second']:8.0f} {level['duration']:7.2f} s {level['cpu_wanted']:11.1%} "
            f"{level['cpu_got']:6.1%} {level['memory_wanted'] / _MIB:10.0f} MiB "
            f"{level['memory_got'] / _MIB:7.0f} MiB"
        )
    say(
        [
            f"Over {summary['duration']:.1f} s the load wanted {summary['cpu_wanted']:.1%} "
            f"of the cores and got {summary['cpu_got']:.1%}."
        ]
    )
