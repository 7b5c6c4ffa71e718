"""The options of `evenstep run`, from the command line and from EVENSTEP_* variables."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from evenstep.errors import InvalidSetting
from evenstep.policies import make_policy
from evenstep.predictors import make_predictor
from evenstep.training.settings import MODES

LOSSES = ("mean", "sum", "global")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of a balancer that can be given without changing a script."""
    add = parser.add_argument_group("balancing").add_argument
    add("--mode", metavar="MODE", help=f"{', '.join(MODES)}; default balanced")
    add("--observe", action="store_true", help="only measure, and say what balancing would save")
    add("--policy", metavar="P", help="as for evenstep simulate")
    add("--predictor", metavar="Q", help="as for evenstep simulate")
    add("--shares", metavar="A,B,...", help="fixed proportions, one per worker; mode static")
    add("--loss", metavar="KIND", help=f"{', '.join(LOSSES)}; default: a mean, which is checked")
    add("--minimum", metavar="N", help="of every worker's batch size")
    add("--maximum", metavar="N[,N...]", help="of every worker's batch size, or one per worker")
    add("--granularity", metavar="N", help="batch sizes are multiples of it")
    add("--warm-up", metavar="N", help="iterations whose times are not reported; default 2")
    add("--watchdog", metavar="N", help="end a job that hangs for N usual iterations")
    # torchrun itself takes --log for one of its own.
    add("--log", "--run-log", metavar="FILE", help="write a run log")
    add("--no-summary", action="store_true", help="no line on the time saved at the end")


def settings_of(
    args: argparse.Namespace, environment: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return the settings that were given; those of the command line win over variables.

    >>> parser = argparse.ArgumentParser()
    >>> add_options(parser)
    >>> args = parser.parse_args(["--policy", "even"])
    >>> settings_of(args, {"EVENSTEP_POLICY": "stepwise", "EVENSTEP_MINIMUM": "2"})
    {'policy': 'even', 'minimum': 2}
    """
    environment = os.environ if environment is None else environment
    settings: dict[str, Any] = {}
    for name in ("mode", "policy", "predictor", "shares", "loss", "minimum", "maximum",
                 "granularity", "warm_up", "watchdog", "log"):  # fmt: skip
        given = getattr(args, name)
        text = environment.get(f"EVENSTEP_{name.upper()}") if given is None else given
        if text is not None:
            settings[name] = _READERS.get(name, _text)(name, text)
    if args.no_summary or _is_on("EVENSTEP_NO_SUMMARY", environment):
        settings["summary"] = False
    observes = args.observe or (args.mode is None and _is_on("EVENSTEP_OBSERVE", environment))
    if observes:
        if args.mode not in (None, "observe"):
            raise InvalidSetting(f"--observe is mode observe, got it with --mode {args.mode}")
        settings["mode"] = "observe"
    if "shares" in settings:
        settings.setdefault("mode", "static")
    _check(settings)
    if "log" in settings:
        settings["log"] = _log_of_attempt(settings["log"], environment)
    return settings


def _check(settings: Mapping[str, Any]) -> None:
    """Raise InvalidSetting before the script runs for what can be known by then."""
    for name, known in (("mode", MODES), ("loss", LOSSES)):
        if settings.get(name, known[0]) not in known:
            raise InvalidSetting(
                f"--{name} must be one of {', '.join(known)}, got {settings[name]!r}"
            )
    if (settings.get("mode") == "static") != ("shares" in settings):
        raise InvalidSetting(
            f"--shares goes with --mode static, got {settings.get('shares')} with "
            f"{settings.get('mode', 'balanced')!r}"
        )
    if "policy" in settings:
        make_policy(settings["policy"])
    if "predictor" in settings:
        make_predictor(settings["predictor"], num_workers=1)


def _log_of_attempt(path: str, environment: Mapping[str, str]) -> str:
    """Return the run log of this attempt: torchrun starts workers again after a failure.

    >>> _log_of_attempt("run.jsonl", {"TORCHELASTIC_RESTART_COUNT": "1"})
    'run-1.jsonl'
    """
    attempt = environment.get("TORCHELASTIC_RESTART_COUNT", "0")
    log = Path(path)
    return path if attempt == "0" else str(log.with_name(f"{log.stem}-{attempt}{log.suffix}"))


def _is_on(name: str, environment: Mapping[str, str]) -> bool:
    text = environment.get(name, "0")
    if text not in ("0", "1"):
        raise InvalidSetting(f"{name} must be 0 or 1, got {text!r}")
    return text == "1"


def _text(name: str, text: str) -> str:
    return text


def _whole(name: str, text: str) -> int:
    if not text.isdecimal():
        raise InvalidSetting(f"{_option(name)} must be a whole number >= 0, got {text!r}")
    return int(text)


def _maximum(name: str, text: str) -> int | Sequence[int]:
    parts = [_whole(name, part) for part in text.split(",")]
    return parts[0] if len(parts) == 1 else parts


def _shares(name: str, text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise InvalidSetting(f"{_option(name)} must be like 2,2,15, got {text!r}") from None


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


_READERS: Mapping[str, Any] = {
    "minimum": _whole,
    "granularity": _whole,
    "warm_up": _whole,
    "watchdog": _whole,
    "maximum": _maximum,
    "shares": _shares,
}
